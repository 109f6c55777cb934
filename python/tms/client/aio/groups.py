"""What an asyncio bus does with groups, apart from consuming: what the bus does, in a thread."""

import asyncio
from collections.abc import Mapping

from tms.client.aio.calls import AsyncCalls
from tms.client.cursor import Start
from tms.model.group import GroupInfo, GroupSummary
from tms.model.position import Position


class AsyncGroupCalls(AsyncCalls):
    """The part of an asyncio bus that looks after groups."""

    async def groups(self, topic: str) -> list[GroupSummary]:
        """See `Bus.groups`."""
        return await asyncio.to_thread(self._bus.groups, topic)

    async def group(self, group: str, topic: str) -> GroupInfo:
        """See `Bus.group`."""
        return await asyncio.to_thread(self._bus.group, group, topic)

    async def positions(self, group: str, topic: str) -> dict[int, Position]:
        """See `Bus.positions`."""
        return await asyncio.to_thread(self._bus.positions, group, topic)

    async def set_positions(self, group: str, topic: str, positions: Mapping[int, Start]) -> None:
        """See `Bus.set_positions`."""
        await asyncio.to_thread(self._bus.set_positions, group, topic, positions)

    async def forget_positions(self, group: str, topic: str) -> None:
        """See `Bus.forget_positions`."""
        await asyncio.to_thread(self._bus.forget_positions, group, topic)
