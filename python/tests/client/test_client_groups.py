"""Groups over an engine in this process and through HTTP: one contract for both."""

from tests.contracts.buses import EmbeddedBus, HttpBus
from tests.contracts.group_contract import GroupContract


class TestEmbedded(EmbeddedBus, GroupContract): ...


class TestHttp(HttpBus, GroupContract): ...
