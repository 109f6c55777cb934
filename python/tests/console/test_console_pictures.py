"""The pictures of docs/console.md: one of each page, small, and made by `make pictures`."""

import re
from pathlib import Path

import pytest

from tests.console_pictures import BYTES_MAX, FOLDER, PICTURES, pictures

ROOT = FOLDER.parents[1]
SHOWN = re.compile(r"!\[[^]]+\]\((?:docs/)?pictures/(console-[a-z-]+\.png)\)")


def test_the_page_shows_each_picture_and_no_other() -> None:
    shown = SHOWN.findall((ROOT / "docs" / "console.md").read_text())
    assert sorted(shown) == sorted(f"console-{one.name}.png" for one in PICTURES)
    assert sorted(shown) == sorted(path.name for path in FOLDER.iterdir())
    assert len(SHOWN.findall((ROOT / "README.md").read_text())) == 2


def test_pictures_are_small() -> None:
    assert not [path for path in FOLDER.iterdir() if path.stat().st_size > BYTES_MAX]


@pytest.mark.long
def test_the_pictures_can_be_taken(tmp_path: Path) -> None:
    taken = {picture.name: len(png) for picture, png in pictures()}
    assert list(taken) == [picture.name for picture in PICTURES]
    assert max(taken.values()) <= BYTES_MAX, taken
