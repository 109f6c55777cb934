"""The bus over an engine in this process and through HTTP: one contract for both."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tms
from tests.contracts.bus_contract import BusContract
from tests.http_kit import serving


class TestEmbedded(BusContract):
    @pytest.fixture
    def bus(self, tmp_path: Path) -> Iterator[tms.Bus]:
        with tms.open(tmp_path / "data") as bus:
            yield bus


class TestHttp(BusContract):
    @pytest.fixture
    def bus(self) -> Iterator[tms.Bus]:
        with serving() as served, tms.connect(f"http://127.0.0.1:{served.address[1]}") as bus:
            yield bus


HEAVY = ["pyarrow", "plyvel", "tenacity", "structlog", "tms.engine", "tms.server", "asyncio"]


def loaded(code: str) -> list[str]:
    """Which of the heavy modules a fresh interpreter has after this code."""
    show = f"import json, sys; print(json.dumps([m for m in {HEAVY} if m in sys.modules]))"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{show}"], capture_output=True, check=True, timeout=60
    )
    found: list[str] = json.loads(done.stdout)
    return found


def test_importing_tms_loads_nothing_heavy() -> None:
    assert loaded("import tms") == []
    assert loaded("import tms; tms.TMSError, tms.MessageId, tms.Position") == []


def test_the_client_never_loads_the_engine() -> None:
    assert loaded("import tms; tms.connect('http://localhost:7070')") == []
    everything = "import tms.client.client, tms.client.http.transport, tms.client.aio.bus"
    assert not {"tms.engine", "tms.server", "plyvel"} & set(loaded(everything))


def test_a_name_that_tms_does_not_have_is_an_error() -> None:
    with pytest.raises(AttributeError, match="cosumer"):
        tms.cosumer  # type: ignore[attr-defined]  # noqa: B018
