"""The methods of a bus for delayed messages: publishing, cancelling and listing them.

Invariants

* A request has a key of its own, which its repetitions carry: it is stored once.
"""

import math
import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

from tms.block import Compression, TimesColumn
from tms.client.batching import REQUEST_BYTES, as_columns
from tms.client.calls import BusCalls
from tms.client.choices import CompressionChoice, DurabilityChoice
from tms.client.delivery import Numbering
from tms.client.topic_cache import as_compression, as_durability, ids_in_order
from tms.errors import Invalid, NotFound
from tms.model.delayed import Deferred, DelayedId, DelayedInfo, DelayedMessage, Due
from tms.model.ids import TIME_MS_MAX
from tms.model.message import Headers, NewBlock
from tms.model.quantity import Duration, seconds, timeout, whole
from tms.model.topic import TopicName
from tms.runtime.retrying import retrying

At = datetime | int  # a time with its zone, or ms since 1970
PAGE = 1_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
DELAY_S_MAX = 1e10  # 300 years


class DelayedCalls(BusCalls):
    """The part of a bus that is about delayed messages. Thread-safe."""

    def publish_later(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        *,
        at: At | None = None,
        delay: Duration | None = None,
        durability: DurabilityChoice | None = None,
        timeout_s: Duration | None = None,
        event_time_ms: int | None = None,
    ) -> DelayedId:
        """Publish one message for delivery at a time or after a delay, wait until it is stored, and
        return its id, which `cancel_delayed` takes.

        `at` is a datetime with time zone, or ms since 1970; `delay` is seconds, a timedelta, or
        text such as "5m". The message is never delivered early, and gets its offset and message id
        in the log when it is due. A time in the past is due at once. Raises `Invalid`,
        `TopicNotFound`, `PartitionNotFound`, `TooLarge`, and `TimedOut` if it is unknown whether
        the message is stored.
        """
        (id,) = self.publish_later_many(
            topic,
            [value],
            *as_columns(key, headers),
            partition,
            at=at,
            delay=delay,
            durability=durability,
            timeout_s=timeout_s,
            event_times_ms=None if event_time_ms is None else [event_time_ms],
        )
        return id

    def publish_later_many(
        self,
        topic: str,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Headers | None] | None = None,
        partition: int | None = None,
        *,
        at: At | None = None,
        delay: Duration | None = None,
        durability: DurabilityChoice | None = None,
        compression: CompressionChoice = Compression.NONE,
        timeout_s: Duration | None = None,
        event_times_ms: TimesColumn | None = None,
    ) -> list[DelayedId]:
        """Publish messages that are due together, and return their ids in the order of the
        messages. Up to 4 MiB of them are stored in one request, all or nothing. Errors carry
        `index` if one message is the reason."""
        due, level = as_due(at, delay), as_durability(durability)
        packing, publishing = as_compression(compression), self._publishing
        known = publishing.known(topic) or self._refresh_topic(topic)
        batcher = publishing.batcher(
            known, Numbering(), batch_bytes=REQUEST_BYTES, compression=packing, partition=partition
        )
        deferred: list[Deferred] = []
        limit_s = timeout(timeout_s, self._timeout_s)

        def store(blocks: list[NewBlock]) -> list[Deferred]:
            token = os.urandom(16).hex()
            port = self._transport.delayed
            return retrying(
                lambda left_s: port.publish(known.name, blocks, due, level, token, left_s),
                self._clock,
                limit_s,
                what="delayed.publish",
            )

        try:
            columns = values, keys, headers, partition
            for blocks in batcher.requests(*columns, event_times_ms=event_times_ms):
                deferred += store(blocks)
        except NotFound:
            publishing.forget(topic)
            raise
        return ids_in_order(deferred, batcher.partitions_of(len(values), keys, partition))

    def cancel_delayed(
        self, topic: str, id: DelayedId | str, timeout_s: Duration | None = None
    ) -> bool:
        """Cancel a delayed message, so that it is never delivered; True if it is cancelled, False
        if it was delivered already or no message has this id. Raises `TopicNotFound`, `Invalid`."""
        name, wanted = TopicName.parse(topic), as_id(id)
        port = self._transport.delayed
        return retrying(
            lambda left_s: port.cancel(name, wanted, left_s),
            self._clock,
            timeout(timeout_s, self._timeout_s),
            what="delayed.cancel",
        )

    def describe_delayed(self, topic: str) -> DelayedInfo:
        """The number of delayed messages of a topic that are waiting, and the time at which the
        first is due. Raises `TopicNotFound`."""
        page = self._transport.delayed.page(TopicName.parse(topic), None, 0)
        return DelayedInfo(page.waiting, page.next_due_ms)

    def list_delayed(
        self, topic: str, after: DelayedId | str | None = None
    ) -> Iterator[DelayedMessage]:
        """The waiting messages of a topic in the order of their due times, starting after the one
        named `after`; read in pages during the iteration. Raises `TopicNotFound`."""
        name, last = TopicName.parse(topic), None if after is None else as_id(after)
        while found := self._transport.delayed.page(name, last, PAGE).messages:
            yield from found
            last = found[-1].id


def as_due(at: At | None, delay: Duration | None) -> Due:
    """The due time of `at` or `delay`. Raises `Invalid`."""
    if (at is None) == (delay is None):
        raise Invalid("Say when messages are due: either at=… or delay=….", field="at")
    if at is not None:
        return Due(at_ms=_at_ms(at))
    assert delay is not None
    return Due(delay_ms=math.ceil(seconds("delay", delay, 0, DELAY_S_MAX) * 1_000))


def as_id(id: DelayedId | str) -> DelayedId:
    """Raises `Invalid`."""
    if isinstance(id, DelayedId):
        return id
    if isinstance(id, str):
        return DelayedId.parse(id)
    raise Invalid(f"A DelayedId or its text is wanted, got {id!r:.80}.", field="id")


def _at_ms(at: At) -> int:
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise Invalid(
                f"The time {at} has no time zone; use e.g. datetime(…, tzinfo=UTC).", field="at"
            )
        return max(0, -(-(at - _EPOCH) // _MS))
    return whole("at", at, 0, TIME_MS_MAX)
