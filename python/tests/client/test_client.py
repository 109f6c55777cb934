"""The bus over an engine in this process and through HTTP: one contract for both."""

import json
import subprocess
import sys

import pytest

import tms
from tests.contracts.bus_contract import BusContract
from tests.contracts.buses import EmbeddedBus, HttpBus


class TestEmbedded(EmbeddedBus, BusContract): ...


class TestHttp(HttpBus, BusContract): ...


HEAVY = ["pyarrow", "plyvel", "tenacity", "structlog", "tms.engine.engine", "tms.server", "asyncio"]


def loaded(code: str) -> list[str]:
    """The heavy modules that a fresh interpreter has loaded after this code."""
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
    assert not {"tms.engine.engine", "tms.server", "plyvel"} & set(loaded(everything))


def test_a_name_that_tms_does_not_have_is_an_error() -> None:
    with pytest.raises(AttributeError, match="cosumer"):
        tms.cosumer  # type: ignore[attr-defined]  # noqa: B018
