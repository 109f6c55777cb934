"""Tests of the store on disk run on every database that is installed: LevelDB and RocksDB."""

import pytest

from tests.databases import NAMES, prefer


@pytest.fixture(params=NAMES)
def database(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The database that new data directories get, in this process and in those that it starts."""
    name: str = request.param
    prefer(name, monkeypatch)
    return name
