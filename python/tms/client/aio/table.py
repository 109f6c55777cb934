"""Tables for asyncio: what the table does, in a thread."""

from tms.client.aio.derived import Derived, in_thread, iterated_in_thread
from tms.client.aio.transaction import AsyncTransaction
from tms.client.table import Table, TableWrites


class AsyncTable(Derived[Table]):
    """Made by `AsyncBus.table`; see `Table`."""

    @property
    def name(self) -> str:
        """Its name."""
        return self._sync.name

    get = in_thread(Table.get)
    scan = iterated_in_thread(Table.scan)
    compact = in_thread(Table.compact)

    async def within(self, tx: AsyncTransaction) -> "AsyncTableWrites":
        """As `Table.within`."""
        return AsyncTableWrites(await tx.run(self._sync.within))


class AsyncTableWrites(Derived[TableWrites]):
    """A table in one transaction; see `TableWrites`. For one task."""

    get = in_thread(TableWrites.get)
    scan = iterated_in_thread(TableWrites.scan)

    def put(self, key: bytes, value: bytes) -> None:
        """As `TableWrites.put`."""
        self._sync.put(key, value)

    def delete(self, key: bytes) -> None:
        """As `TableWrites.delete`."""
        self._sync.delete(key)
