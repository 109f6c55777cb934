"""The contract of transactions on an engine in this process and through HTTP."""

from tests.contracts.buses import EmbeddedBus, HttpBus
from tests.contracts.transaction_contract import TransactionContract


class TestEmbedded(EmbeddedBus, TransactionContract): ...


class TestHttp(HttpBus, TransactionContract): ...
