"""The contract of transactions on an engine in this process and through HTTP."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import tms
from tests.contracts.transaction_contract import TransactionContract
from tests.http_kit import serving


class TestEmbedded(TransactionContract):
    @pytest.fixture
    def bus(self, tmp_path: Path) -> Iterator[tms.Bus]:
        with tms.open(tmp_path / "data") as bus:
            yield bus


class TestHttp(TransactionContract):
    @pytest.fixture
    def bus(self) -> Iterator[tms.Bus]:
        with serving() as served, tms.connect(f"http://127.0.0.1:{served.address[1]}") as bus:
            yield bus
