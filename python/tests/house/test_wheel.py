"""The installed distribution: the wheel has only the package, declares its requirements, and starts
fast.
"""

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

import pytest

import tms

ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
STARTS = 9
YARDSTICK = "import json, argparse, http.client, asyncio"  # of the standard library
YARDSTICKS_MAX = 1.4
BUILD = "import sys; from hatchling.build import build_wheel as b; print(b(sys.argv[1]))"
JAR = f"tms/store/hbase/deployment/tms-coprocessor-{tms.__version__}.jar"  # if the jar was built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZipFile]:
    """The wheel as `make wheel` builds it."""
    folder = tmp_path_factory.mktemp("wheel")
    done = subprocess.run(
        [sys.executable, "-c", BUILD, str(folder)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    [path] = folder.iterdir()
    assert path.name == f"tms_log-{tms.__version__}-py3-none-any.whl"
    with ZipFile(path) as opened:
        yield opened


@pytest.fixture
def metadata(wheel: ZipFile) -> Message:
    """The metadata that pip reads."""
    return Parser().parsestr(_text(wheel, "METADATA"))


def _text(wheel: ZipFile, name: str) -> str:
    return wheel.read(f"tms_log-{tms.__version__}.dist-info/{name}").decode()


def test_the_wheel_has_every_file_of_the_package_and_no_other(wheel: ZipFile) -> None:
    package = ROOT / "python"
    ours = {
        path.relative_to(package).as_posix()
        for path in (package / "tms").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    inside = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert inside - {JAR} == ours
    assert "tms/py.typed" in inside


def test_the_coprocessor_is_in_the_wheel_if_it_was_built(wheel: ZipFile) -> None:
    built = (ROOT / "coprocessor/target" / Path(JAR).name).is_file()
    assert (JAR in wheel.namelist()) == built


def test_the_wheel_says_what_it_is_and_what_it_needs(wheel: ZipFile, metadata: Message) -> None:
    assert metadata["Name"] == "tms-log"
    assert metadata["Version"] == tms.__version__
    assert metadata["Requires-Python"] == PROJECT["requires-python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert set(metadata.get_all("Provides-Extra") or []) == set(PROJECT["optional-dependencies"])
    needed = [one for one in metadata.get_all("Requires-Dist") or [] if "extra ==" not in one]
    names = {"".join(one.split(">=")[0].split()) for one in PROJECT["dependencies"]}
    assert {one.split(">=")[0] for one in needed} == names
    assert _text(wheel, "entry_points.txt").split() == [
        *("[console_scripts]", "tms", "=", "tms.cli.main:main"),
        *("[pytest11]", "tms", "=", "tms.testing.plugin"),
    ]
    assert _text(wheel, "licenses/LICENSE") == (ROOT / "LICENSE").read_text()


def test_its_page_begins_with_how_to_install_it(metadata: Message) -> None:
    assert metadata["Description-Content-Type"] == "text/markdown"
    page = metadata.get_payload()
    assert isinstance(page, str)
    assert page.index("pip install") < page.index("```python")


def _cpu_ms(code: str) -> float:
    """Seconds that a new Python takes for some code, user and system together, at best."""

    def once() -> float:
        child = os.posix_spawn(
            sys.executable,
            [sys.executable, "-c", code],
            {"PYTHONPATH": str(ROOT / "python")},
            file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)],
        )
        _, status, used = os.wait4(child, 0)
        assert status == 0
        return 1000 * (used.ru_utime + used.ru_stime)

    return min(once() for _ in range(STARTS))


@pytest.mark.parametrize(
    "code",
    [
        "import tms",
        "import sys; from tms.cli.main import main; sys.argv = ['tms', '--version']; main()",
    ],
    ids=["import tms", "tms --version"],
)
def test_it_starts_fast(code: str) -> None:
    assert _cpu_ms(code) <= YARDSTICKS_MAX * _cpu_ms(YARDSTICK)
