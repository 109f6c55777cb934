"""Key-value data that commits with messages: embedded only.

    stock = bus.table("stock")
    with bus.transaction() as tx:
        mine = stock.within(tx)
        left = int(mine.get(b"apples") or b"0")
        mine.put(b"apples", b"%d" % (left - 1))
        tx.send("sold", b"apple")

Invariants

* A transaction reads the table as it was when it joined, and its own writes over that.
* Of two transactions at a time that wrote the same key, only one commits; what was only read does
  not conflict.
* A read outside of a transaction sees all of a transaction or none of it.
* Writes wait here until the commit; then they are stored before it, and seen after it.
"""

from collections.abc import Iterable, Iterator, Mapping
from heapq import merge
from operator import itemgetter
from typing import Protocol

from tms.client.participants import Transacted
from tms.client.transaction import Transaction
from tms.errors import Invalid, TooLarge
from tms.model.snapshot import Snapshot
from tms.model.transaction import Commit

VALUE_BYTES_MAX = 8 << 20
WRITES_BYTES_MAX = 64 << 20


class TablesPort(Protocol):
    """The engine's tables; see `tms.transactions.tables.Tables`."""

    def snapshot(self, transaction: int) -> Snapshot: ...

    def get(self, table: str, key: bytes, snapshot: Snapshot | None = None) -> bytes | None: ...

    def scan(
        self, table: str, start: bytes, stop: bytes | None, snapshot: Snapshot | None = None
    ) -> Iterator[tuple[bytes, bytes]]: ...

    def write(self, table: str, transaction: int, values: Mapping[bytes, bytes | None]) -> None: ...

    def take_back(self, table: str, transaction: int, keys: Iterable[bytes]) -> None: ...

    def compact(self, table: str) -> int: ...


class Table:
    """The committed content of a table; created by `Bus.table`. Thread-safe."""

    def __init__(self, name: str, tables: TablesPort) -> None:
        self.name = name
        self._tables = tables

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    def get(self, key: bytes) -> bytes | None:
        """The committed value of a key; None if it has none."""
        return self._tables.get(self.name, key)

    def scan(self, start: bytes = b"", stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """The committed keys and values of [start, stop), in the order of the keys. All are as of
        the moment when the first one is read."""
        return self._tables.scan(self.name, start, stop)

    def within(self, tx: Transaction) -> "TableWrites":
        """The table within a transaction; returns the same object each time."""
        for joined in tx.participants:
            if isinstance(joined, TableWrites) and joined.is_of(self.name, self._tables):
                return joined
        return tx.join(TableWrites(self.name, self._tables))

    def compact(self) -> int:
        """Remove old versions that no transaction can see any more, and return their number."""
        return self._tables.compact(self.name)


class TableWrites:
    """A table in one transaction; a `Participant`. For one thread."""

    def __init__(self, name: str, tables: TablesPort) -> None:
        self._name = name
        self._tables = tables
        self._id = 0
        self._snapshot: Snapshot | None = None
        self._values: dict[bytes, bytes | None] = {}
        self._bytes = 0
        self._stored = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._name}, {len(self._values)} keys written>"

    def get(self, key: bytes) -> bytes | None:
        """The value of a key as this transaction sees it."""
        if key in self._values:
            return self._values[key]
        return self._tables.get(self._name, key, self._snapshot)

    def put(self, key: bytes, value: bytes) -> None:
        """Set a key. Raises `Invalid`, `TooLarge`."""
        if type(value) is not bytes:
            raise Invalid(f"A value is bytes, got {type(value).__name__}; `delete` removes a key.")
        if len(value) > VALUE_BYTES_MAX:
            raise TooLarge(f"A value has at most {VALUE_BYTES_MAX} bytes, got {len(value)}.")
        self._set(key, value)

    def delete(self, key: bytes) -> None:
        """Remove a key; one that is not there may be removed too."""
        self._set(key, None)

    def scan(self, start: bytes = b"", stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values of [start, stop) as this transaction sees them, in order."""
        own = sorted(
            (key, value)
            for key, value in self._values.items()
            if start <= key and (stop is None or key < stop)
        )
        return _over(self._tables.scan(self._name, start, stop, self._snapshot), own)

    def is_of(self, name: str, tables: TablesPort) -> bool:
        """True if this is that table."""
        return self._name == name and self._tables is tables

    def _set(self, key: bytes, value: bytes | None) -> None:
        if type(key) is not bytes or not 0 < len(key) <= 500:
            raise Invalid(f"A key is 1 to 500 bytes, got {key!r:.80}.")
        size = len(key) + len(value or b"")
        if self._bytes + size > WRITES_BYTES_MAX:
            raise TooLarge(
                f"A transaction writes at most {WRITES_BYTES_MAX} bytes to a table. Commit sooner."
            )
        self._bytes += size
        self._values[key] = value

    # -- as a participant ------------------------------------------------------------------------

    def start(self, transaction: Transacted) -> "TableWrites":
        """The transaction sees the table as it is now."""
        self._id = transaction.id
        self._snapshot = self._tables.snapshot(self._id)
        return self

    def changes(self) -> Iterable[bytes]:
        """A key for each that was written."""
        prefix = f"table/{self._name}/".encode()
        return [prefix + key for key in self._values]

    def persist(self, request: Commit) -> Commit:
        """Store the versions, synced: nobody sees them before the commit."""
        self._stored = True
        self._tables.write(self._name, self._id, self._values)
        return request

    def post_commit(self) -> None:
        """Nothing is left to do."""

    def roll_back(self) -> None:
        """Take the versions back."""
        if self._stored:
            self._tables.take_back(self._name, self._id, self._values)


def _over(
    below: Iterator[tuple[bytes, bytes]], own: list[tuple[bytes, bytes | None]]
) -> Iterator[tuple[bytes, bytes]]:
    """Committed rows with a transaction's own over them, which come first where keys are equal."""
    last: bytes | None = None
    for key, value in merge(own, below, key=itemgetter(0)):
        if key != last and value is not None:
            yield key, value
        last = key
