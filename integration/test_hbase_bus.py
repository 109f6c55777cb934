"""The bus on a real HBase: the contracts that hold in one process and over HTTP also hold here."""

from collections.abc import Iterator

import pytest

import tms
from tests.contracts.bus_contract import BusContract
from tests.contracts.transaction_contract import TransactionContract
from tests.http_kit import serving
from tms.runtime.clock import SystemClock
from tms.store.hbase.store import HBaseStore


@pytest.fixture
def bus(tms_url: str) -> Iterator[tms.Bus]:
    with tms.open(tms_url) as bus:
        yield bus


class TestBus(BusContract):
    pass


class TestTransactions(TransactionContract):
    pass


@pytest.mark.long
class TestService(TransactionContract):
    @pytest.fixture
    def bus(self, tms_url: str) -> Iterator[tms.Bus]:
        store = HBaseStore(tms_url, clock=SystemClock())
        with (
            serving(store=store) as served,
            tms.connect(f"http://{':'.join(map(str, served.address))}") as bus,
        ):
            yield bus
