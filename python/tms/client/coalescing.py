"""Coalescing of single publishes: those that come while another one to the same topic is under way
go together in the next request. A publish that is alone waits for nobody.

    publish ─ nobody under way ─▶ its own request ─▶ then: what has gathered, as one request ─▶ …
       └─ somebody under way ──▶ waits for its group's answer

This is group commit on the client's side: with many callers the cost of a request, and of a sync,
is shared by all who came meanwhile.

Invariants

* One request at a time for each place, a topic with a durability, so callers go in the order in
  which they came.
* Each message is checked by itself before it joins: a bad one fails alone.
* Whoever waits is told: its group's outcome, or that its own time is over.
"""

import copy
import threading
from collections import deque
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from tms.block import Compression
from tms.client.batching import REQUEST_BYTES, KnownTopic
from tms.client.delivery import Delivery, Numbering, Unacknowledged, deliver
from tms.client.topic_cache import Lone, TopicCache, as_durability, ids_in_order
from tms.client.transport import Transport
from tms.errors import TimedOut, TMSError, Unavailable
from tms.model.ids import MessageId
from tms.model.message import Appended, NewBlock
from tms.model.topic import TopicName, parse_durability
from tms.runtime import forks
from tms.runtime.clock import Clock
from tms.runtime.retrying import attempt_s

GROUP_BYTES = 1 << 20
GROUP_MESSAGES = 4_096

Answer = TypeVar("Answer")
PublishKey = tuple[TopicName, str | None]


class WaitingPublish(NamedTuple, Generic[Answer]):
    """A message that waits for the next request to its place."""

    message: Lone
    bytes: int
    answer: Answer


class SingleFlight(Generic[Answer]):
    """One request at a time for each place: whose it is, and which messages wait for the next one.
    Pure state; not thread-safe."""

    def __init__(self) -> None:
        self._waiting: dict[PublishKey, deque[WaitingPublish[Answer]]] = {}

    def begin(self, place: PublishKey) -> bool:
        """True if no request is under way. Then the caller's is, until `next_group` is empty."""
        if place in self._waiting:
            return False
        self._waiting[place] = deque()
        return True

    def join(self, place: PublishKey, waiting: WaitingPublish[Answer]) -> None:
        """Wait for the next group."""
        self._waiting[place].append(waiting)

    def next_group(self, place: PublishKey) -> list[WaitingPublish[Answer]]:
        """The publishes of the next request, in the order in which they came; none if no publish
        waits, which ends the flight."""
        queue, size = self._waiting[place], 0
        group: list[WaitingPublish[Answer]] = []
        while queue and len(group) < GROUP_MESSAGES and (not group or size < GROUP_BYTES):
            group.append(queue.popleft())
            size += group[-1].bytes
        if not group:
            del self._waiting[place]
        return group


class PackedGroup(NamedTuple):
    """The request of a group, and where each of its messages goes."""

    blocks: list[NewBlock]
    partitions: list[int]

    def ids(self, appended: Sequence[Appended]) -> list[MessageId | None]:
        """The messages' ids; None with durability `none`."""
        ids = ids_in_order(appended, self.partitions)
        return list(ids) if ids else [None] * len(self.partitions)


def pack(
    publishing: TopicCache, known: KnownTopic, messages: Sequence[Lone], numbering: Numbering
) -> PackedGroup:
    """The blocks of messages that were checked before."""
    batcher = publishing.batcher(
        known, numbering, batch_bytes=REQUEST_BYTES, compression=Compression.NONE
    )
    partitions = []
    for message in messages:
        partition = message.partition
        batcher.add(message.value, message.key, message.headers, partition, message.event_time_ms)
        partitions.append(batcher.partition_of(message.key) if partition is None else partition)
    return PackedGroup(batcher.pack(), partitions)


def unacknowledged(
    known: KnownTopic,
    durability: str | None,
    numbering: Numbering,
    blocks: list[NewBlock],
    timeout_s: float,
) -> Unacknowledged:
    """The blocks of one request, which are to be delivered."""
    level = as_durability(durability)
    delivery = Delivery(known.name, numbering, level, Compression.NONE, timeout_s)
    return Unacknowledged(delivery, blocks)


class _Outcome:
    """The outcome of a waiting publish, or the group that its thread has to lead."""

    __slots__ = ("_gate", "_lock", "abandoned", "error", "id", "led_group")

    def __init__(self) -> None:
        self.id: MessageId | None = None
        self.error: TMSError | None = None
        self.led_group: _Group | None = None
        self.abandoned = False
        self._lock = threading.Lock()
        self._gate = threading.Lock()
        self._gate.acquire()

    def wait(self, timeout_s: float) -> bool:
        """True if an outcome or a group came in time; otherwise the publish is abandoned."""
        if self._gate.acquire(timeout=timeout_s):
            return True
        with self._lock:
            self.abandoned = self._gate.locked()
            return not self.abandoned

    def tell(self) -> bool:
        """Let it go on; False when it does not wait any more."""
        with self._lock:
            if self.abandoned:
                return False
            self._gate.release()
            return True


_Group = list[WaitingPublish[_Outcome]]


class Coalescing:
    """Single publishes of all threads of a bus."""

    def __init__(
        self,
        publishing: TopicCache,
        transport: Transport,
        timeout_s: float,
        clock: Clock,
    ) -> None:
        self._publishing = publishing
        self._transport = transport
        self._timeout_s = timeout_s
        self._attempt_s = attempt_s(timeout_s)
        self._clock = clock
        self._begin()
        forks.in_child(self._begin)  # those who were under way, or waited, are the parent's threads

    def _begin(self) -> None:
        self._publishes: SingleFlight[_Outcome] = SingleFlight()
        self._lock = threading.Lock()

    def publish(
        self, known: KnownTopic, message: Lone, durability: str | None, timeout_s: float | None
    ) -> MessageId | None:
        """Publish one message; its id, or None with durability `none`."""
        place = (known.name, durability)
        with self._lock:
            alone = self._publishes.begin(place)
        if not alone:
            return self._with_others(known, place, message, timeout_s)
        try:
            numbering = self._publishing.take_numbering()
            blocks = [self._publishing.block(known, message, numbering)]
            asked = None if durability is None else parse_durability(durability)
            left_s = self._timeout_s if timeout_s is None else timeout_s
            one_s = self._attempt_s if timeout_s is None else attempt_s(timeout_s)
            begun_s = self._clock.monotonic_s()
            try:  # straight: whatever is needed for a repetition is made when there is one
                [stored] = self._transport.append(known.name, blocks, asked, one_s)
            except TMSError as error:
                left_s -= self._clock.monotonic_s() - begun_s
                if left_s <= 0:
                    raise
                left = unacknowledged(known, durability, numbering, blocks, left_s)
                [stored] = deliver(self._transport.append, left, self._clock, left_s, error)
            self._publishing.return_numbering(numbering)
            return MessageId(stored.time_ms, stored.sequence) if stored.time_ms >= 0 else None
        finally:
            with self._lock:
                group = self._publishes.next_group(place)
            if group:
                self._hand_over(known, place, group)

    def _with_others(
        self, known: KnownTopic, place: PublishKey, message: Lone, timeout_s: float | None
    ) -> MessageId | None:
        waiting = WaitingPublish(message, message.check(known), _Outcome())
        with self._lock:
            if self._publishes.begin(place):  # they have just finished
                waiting.answer.led_group = [waiting]
            else:
                self._publishes.join(place, waiting)
        answer = waiting.answer
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        if answer.led_group is None and not answer.wait(timeout_s):
            raise late(timeout_s)
        if answer.led_group is not None:
            self._lead(known, place, answer.led_group)
        if answer.error is not None:
            raise answer.error
        return answer.id

    def _hand_over(self, known: KnownTopic, place: PublishKey, group: _Group) -> None:
        """Let this group go, led by the first of it who still waits, or else the next one."""
        while group:
            for one in group:
                one.answer.led_group = group
                if one.answer.tell():
                    return
                one.answer.led_group = None
            # Nobody waits any more: what they sent may be stored or not, so it is not.
            with self._lock:
                group = self._publishes.next_group(place)

    def _lead(self, known: KnownTopic, place: PublishKey, group: _Group) -> None:
        leader = next(one.answer for one in group if one.answer.led_group is not None)
        try:
            numbering = self._publishing.take_numbering()
            packed = pack(self._publishing, known, [one.message for one in group], numbering)
            limit_s = self._timeout_s
            left = unacknowledged(known, place[1], numbering, packed.blocks, limit_s)
            appended = deliver(self._transport.append, left, self._clock, limit_s)
            self._publishing.return_numbering(numbering)
            for one, id in zip(group, packed.ids(appended), strict=True):
                one.answer.id = id
        except BaseException as error:
            for one in group:
                one.answer.error = told(error)
            if not isinstance(error, TMSError):
                raise
        finally:
            for one in group:
                if one.answer is not leader:
                    one.answer.tell()
            with self._lock:
                following = self._publishes.next_group(place)
            self._hand_over(known, place, following)


def told(error: BaseException) -> TMSError:
    """A copy of the group's error for each waiting caller."""
    if isinstance(error, TMSError):
        return copy.copy(error)
    return Unavailable(
        "The publish that this message went with was interrupted; whether it is stored is unknown."
    )


def late(timeout_s: float) -> TimedOut:
    """The error of a publish that has waited for too long."""
    return TimedOut(
        f"The message was not acknowledged within {timeout_s:g} s; whether it is stored is unknown."
    )
