"""Topics read from a service over HTTP.

    answer ──▶ next fetch begins ──▶ the answer's blocks go to Spark

Invariants

* A task has one connection, which fetches its split; it is closed with the task.
* While Spark works on the blocks of one answer, the next is under way. The size of a fetch follows
  from the sizes of earlier messages, so that a short split does not fetch a long one.
* All messages that are read belong to the generation of the topic that the split was planned in.
  Generations only grow, so it is enough to compare it after the last answer.
* Readers wait for a service that is away: for `outage_s`, in a stream without end unless the option
  is set.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any, TypeVar

from tms.api.parameters import TIMEOUT_S
from tms.block import read_header
from tms.client.http.transport import HttpTransport, transport_to
from tms.client.transport import Channel, FetchRequest, PendingAnswer
from tms.errors import TimedOut, TMSError
from tms.model.message import Fetched, PartitionPosition, StoredBlock
from tms.model.position import Position
from tms.model.topic import TopicName
from tms.runtime.retrying import Outage, retrying
from tms.runtime.tls import ClientTls
from tms.spark.source.losses import created_anew, ends_early
from tms.spark.source.splitting import even_splits
from tms.spark.source.topics import Split

T = TypeVar("T")
FETCH_BYTES = 8 << 20
FIRST_FETCH_BYTES = 1 << 20
_TOPICS_PER_PAGE = 1_000
_SLACK = 1.25  # of the estimate how many bytes are left


class ServiceReader:
    """The topics of the service at `url`."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        tls: ClientTls | None = None,
        outage_s: float = TIMEOUT_S,
    ) -> None:
        self._url = url
        self._tls = tls
        self._token = token or ""
        self._timeout_s = timeout_s
        self._outage_s = outage_s
        self._connected: HttpTransport | None = None
        self._outage: Outage | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_connected": None, "_outage": None}

    def names(self, namespace: str) -> Iterator[TopicName]:
        """The topics of a namespace."""
        after = None
        while True:
            page = self._survive(
                partial(self._transport.list_topics, namespace, after, _TOPICS_PER_PAGE)
            )
            yield from (topic.name for topic in page)
            if len(page) < _TOPICS_PER_PAGE:
                return
            after = page[-1].topic

    def generation(self, topic: str) -> int:
        """The topic's generation."""
        name = TopicName.parse(topic)
        return self._survive(lambda: self._transport.describe_topic(name)).generation

    def offsets(self, topic: str, at: Position) -> Mapping[int, int]:
        """By partition, the offset of the first message at or after a position."""
        name = TopicName.parse(topic)
        return self._survive(lambda: self._transport.offsets(name, at))

    def splits(
        self, topic: str, ranges: Mapping[int, tuple[int, int]], at_least: int
    ) -> list[Split]:
        """The ranges in about equal parts."""
        generation = b"%d" % self.generation(topic)
        return [split._replace(where=generation) for split in even_splits(topic, ranges, at_least)]

    def read(self, split: Split) -> Iterator[StoredBlock]:
        """The committed blocks that overlap the split, in order."""
        outage = self._begin_outage()
        fetching = _Fetching(self._transport, split, self._timeout_s, outage)
        try:
            for blocks in fetching.answers():
                if fetching.finished:
                    self._check_generation(split)
                yield from blocks
        finally:
            fetching.close()

    def close(self) -> None:
        """Release the connections."""
        if self._outage is not None:
            self._outage.ended.set()
            self._outage = None
        if self._connected is not None:
            self._connected.close()
            self._connected = None

    def _begin_outage(self) -> Outage:
        if self._outage is None:
            limit_s = None if self._outage_s == inf else self._outage_s
            self._outage = Outage(f"reader of {self._url}", limit_s, threading.Event())
        return self._outage

    def _survive(self, call: Callable[[], T]) -> T:
        """The result of a call with its own time-out, once the service is there."""
        clock, outage = self._transport.clock, self._begin_outage()
        return retrying(lambda _: call(), clock, self._timeout_s, outage=outage)

    @property
    def _transport(self) -> HttpTransport:
        if self._connected is None:
            self._connected = transport_to(
                self._url, token=self._token, timeout_s=self._timeout_s, tls=self._tls
            )
        return self._connected

    def _check_generation(self, split: Split) -> None:
        if split.where and self.generation(split.topic) != int(split.where):
            raise created_anew(split.topic)


class _Fetching:
    """The fetches of one split, one after another on a connection of their own."""

    def __init__(
        self, transport: HttpTransport, split: Split, timeout_s: float, outage: Outage
    ) -> None:
        self._name = TopicName.parse(split.topic)
        self._split = split
        self._clock = transport.clock
        self._timeout_s = timeout_s
        self._outage = outage
        self._channel: Channel = transport.open_channel()
        self._position = Position.offset(split.start)
        self._at = split.start  # the offset before which everything was looked at
        self._bytes = self._offsets = 0  # that have come
        self.finished = False

    def answers(self) -> Iterator[list[StoredBlock]]:
        """The blocks of each answer; the last one is handed out when `finished` is set."""
        ahead: PendingAnswer[Fetched] | None = None
        while not self.finished:
            fetched = self._answer(ahead)
            blocks = self._accept(fetched)
            ahead = None if self.finished else self._begin()
            yield blocks

    def close(self) -> None:
        self._channel.close()

    def _accept(self, fetched: Fetched) -> list[StoredBlock]:
        """The blocks of an answer that are of the split. Raises `OffsetOutOfRange` when there are
        no more and the log ends before the split does."""
        stop = self._split.stop
        wanted = []
        for block in fetched.blocks:
            header = read_header(block.block)
            end = header.base_offset + header.count
            self._bytes += len(block.block)
            self._offsets += header.count
            if header.base_offset < stop and end > self._split.start:
                wanted.append(block)
        self._position = fetched.next[self._split.partition]
        end_of_log = fetched.ends[self._split.partition]
        self._at = max(self._at, fetched.reached[self._split.partition])
        if fetched.ended and end_of_log < stop and not wanted:
            raise ends_early(*self._split[:2], end_of_log, stop, self._at)
        self.finished = self._at >= stop
        return wanted

    def _begin(self) -> PendingAnswer[Fetched] | None:
        """Begin the next fetch; when that fails, it is asked for again with its answer."""
        with suppress(TMSError):
            return self._ask()
        return None

    def _ask(self) -> PendingAnswer[Fetched]:
        there = [PartitionPosition(self._split.partition, self._position)]
        return self._channel.begin_fetch(FetchRequest(self._name, there, self._bytes_wanted(), 0))

    def _bytes_wanted(self) -> int:
        if not self._offsets:
            return FIRST_FETCH_BYTES
        left = (self._split.stop - self._at) * self._bytes / self._offsets
        return min(FETCH_BYTES, max(FIRST_FETCH_BYTES, int(left * _SLACK)))

    def _answer(self, ahead: PendingAnswer[Fetched] | None) -> Fetched:
        held = [ahead]

        def attempt(left_s: float) -> Fetched:
            pending = held.pop() if held else None
            if pending is None:
                pending = self._ask()
            try:
                return pending.result(left_s)
            except TimedOut:
                self._channel.reset()
                raise

        return retrying(attempt, self._clock, self._timeout_s, outage=self._outage)
