"""An HBase for the rounds of a run, each with a namespace of its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from integration import coprocessor
from integration.cluster import Standalone
from integration.containers import Containers
from integration.install import install
from integration.shared import make_hbase


class Stores:
    """The namespaces of one HBase."""

    def __init__(self, hbase: Standalone | Containers) -> None:
        self._hbase = hbase
        self._made: list[str] = []
        self.zookeeper = hbase.zookeeper if isinstance(hbase, Standalone) else ""

    def make(self, name: str) -> str:
        """Make a new store with TMS's tables and the coprocessor; drop the one before."""
        for other in self._made:
            with self._hbase.connect() as gateway:
                gateway.drop_namespace(other)
        self._made = [name]
        url = self._hbase.url(name)
        install(url, coprocessor.build())
        return url


@contextmanager
def started(directory: Path) -> Iterator[Stores]:
    """An HBase with its files in a directory."""
    with make_hbase(directory) as hbase:
        yield Stores(hbase)
