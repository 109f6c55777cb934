"""A queue: messages are leased to workers, who ack them one by one.

    queue = bus.queue("jobs", group="workers")
    for message in queue:
        with queue.settling(message):
            …                                # acked at the end, returned if this raises

Invariants

* Any number of them, in any number of processes, are one queue: it knows nothing of it but which
  messages are being handled here, whose leases it extends.
* A handler learns if the lease of its message was lost.
* Neighbours among the messages of a call go as one token.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar, Unpack, overload

from tms.api.queue_operations import QueuesApi
from tms.api.queues import FETCH_BYTES_MAX, REDRIVE_MAX
from tms.block import MESSAGES_MAX
from tms.block.received import Delivered, Received
from tms.client.calls import BusCalls
from tms.client.leases import HeldMessage, Leases, Pace
from tms.client.worker import DRAIN_S, Handler, Worker, WorkerOptions
from tms.errors import Fenced, GroupNotFound, Invalid, QueueNotFound, TMSError, TopicNotFound
from tms.model.dead_letters import LetterId, settled_in
from tms.model.message import Message
from tms.model.position import Position
from tms.model.quantity import Duration, seconds, whole
from tms.model.queue import (
    DELAY_S_MAX,
    LEASE_S_MAX,
    LEASE_S_MIN,
    PEEK_MAX,
    RECEIVE_BYTES,
    RECEIVE_MAX,
    QueuedMessage,
    QueueInfo,
    QueueOptions,
    QueueSettings,
    Settlement,
    Token,
    TokenResult,
    dead_letter_topic,
    dead_origin,
    error_text,
    in_seconds,
    join_tokens,
    redrive_group,
)
from tms.model.serializer import Decoder, V, reading
from tms.model.topic import TopicName
from tms.model.transaction import check_group
from tms.runtime.clock import Clock
from tms.runtime.retrying import Outage, retrying, retrying_async

T = TypeVar("T")
Deliveries = Delivered[V] | Received | str | Iterable[Delivered[V] | str]
_Settle = Callable[[TopicName, str, list[str]], TokenResult]
Ahead = deque[tuple[Delivered[V], HeldMessage]]  # messages that are leased, and not handled yet
MarkFailed = Callable[[BaseException], object]
_UNTRACED = nullcontext[MarkFailed](lambda error: None)
WAIT_S = 20.0  # of an iteration, before it asks again


class DeadLetter(NamedTuple):
    """A dead letter, why it is one, after how many deliveries, and where it was in the topic of its
    queue: partition, offset and id."""

    message: Message
    cause: str
    deliveries: int
    partition: int
    offset: int
    id: str

    @property
    def letter(self) -> LetterId:
        """Its name for `Queue.redrive` and `Queue.discard`."""
        return LetterId(self.message.partition, self.message.id)


LetterNames = Iterable[DeadLetter | str]


def letter_ids(letters: LetterNames) -> list[LetterId]:
    """The ids of dead letters. Raises `Invalid`."""
    if isinstance(letters, str):
        raise Invalid("Dead letters are a list, not a text.", field="letters")
    return [LetterId.parse(one) if isinstance(one, str) else one.letter for one in letters]


class QueuePatience(NamedTuple):
    """The time for which a queue repeats a call, and the outages that its loops survive."""

    clock: Clock
    timeout_s: float
    outage: Outage

    def survive(self, call: Callable[[], T]) -> T:
        """The result of a call with a time-out of its own, once the service is there."""
        return retrying(lambda _: call(), self.clock, self.timeout_s, outage=self.outage)

    async def survive_async(self, call: Callable[[], Awaitable[T]]) -> T:
        """As `survive`, for coroutines."""
        clock, timeout_s, outage = self
        return await retrying_async(lambda _: call(), clock, timeout_s, outage=outage)


class Queue(Generic[V]):
    """Messages of a topic that workers lease, settle and receive again after a failure; created by
    `Bus.queue`. Thread-safe."""

    def __init__(
        self,
        port: QueuesApi,
        name: TopicName,
        group: str,
        settings: QueueSettings,
        patience: QueuePatience,
        serializer: Decoder[V] | None = None,
    ) -> None:
        self.kind: type[Delivered[V]] = reading(Delivered, serializer)
        self._port = port
        self.group = group
        self.name = name
        self._topic = str(name)
        self.settings = settings
        self.patience = patience
        self.leases = Leases(
            self._extend_kept,
            lambda: self.settings.lease_s,
            patience.clock,
            f"the queue {group} of {name}",
        )

    @property
    def topic(self) -> str:
        """The name of the topic, as `topic` of its messages has it."""
        return self._topic

    def __repr__(self) -> str:
        return f"<Queue {self.group} of {self.name}>"

    # -- messages ----------------------------------------------------------------------------------

    def receive(
        self, limit: int = 1, wait_s: Duration = 0, bytes_max: int = RECEIVE_BYTES
    ) -> list[Delivered[V]]:
        """Lease up to `limit` messages to the caller; waits up to `wait_s` for the first one.
        Messages that were delivered before come first. Raises `QueueNotFound`, `Invalid`."""
        received = self.receive_slices(limit, wait_s, bytes_max)
        return received.messages(self._topic, self.kind)

    def receive_slices(
        self, limit: int = 1, wait_s: Duration = 0, bytes_max: int = RECEIVE_BYTES
    ) -> Received:
        """Lease messages as `receive` does, but return them as slices of blocks with their columns,
        which is faster for many messages."""
        wait_s = check_receive(limit, wait_s, bytes_max)
        return self._port.receive(self.name, self.group, limit, wait_s, bytes_max)

    def peek(self, limit: int = 10) -> list[QueuedMessage]:
        """Up to `limit` unsettled messages with their states, without leasing them; at most 1,000
        messages and about 4 MiB. Messages that were delivered before come first."""
        whole("limit", limit, 1, PEEK_MAX)
        return self._port.peek(self.name, self.group, limit)

    def __iter__(self) -> Iterator[Delivered[V]]:
        """Messages without end; each is to be acknowledged before the next one. Its lease lasts for
        as long as that takes, and no more are leased ahead than are handled in a second. Raises
        `Fenced` when the lease of a message was lost and its handler has not settled it. When the
        service was away it goes on by itself."""
        pace = Pace(self.settings.lease_s, self.settings.deliveries_max)
        while True:
            messages = self.patience.survive(lambda: self.receive(pace.limit, WAIT_S))
            with leased(self, messages) as ahead:
                try:
                    yield from handled(self, ahead, pace)
                finally:
                    if rest := unhandled(ahead):
                        with suppress(TMSError):  # then the leases end
                            self.release(rest)

    @contextmanager
    def settling(self, message: Delivered[V]) -> Iterator[Delivered[V]]:
        """Ack a message when the `with` block ends; if the block raises, nack the message with the
        queue's back-off, and with the error as its cause. Does neither if the block has settled the
        message, or passed it to a transaction. The lease lasts while the block runs. If the service
        is away, the ack waits for it. Raises `Fenced` if the lease was lost nevertheless: then
        another worker handles the message, too."""
        with held(self, message) as kept:
            try:
                yield message
            except BaseException as error:
                if not kept.settled and self.nack(message, cause=error_text(error)).fenced:
                    error.add_note(lease_lost(self, message).message)
                raise
            if not kept.settled and self.patience.survive(lambda: self.ack(message)).fenced:
                raise lease_lost(self, message)

    @overload
    def worker(
        self, handler: Handler[V], *, concurrency: int = 1, drain_s: Duration = DRAIN_S
    ) -> Worker[V]: ...

    @overload
    def worker(
        self, handler: None = None, *, concurrency: int = 1, drain_s: Duration = DRAIN_S
    ) -> Callable[[Handler[V]], Worker[V]]: ...

    def worker(
        self,
        handler: Handler[V] | None = None,
        *,
        concurrency: int = 1,
        drain_s: Duration = DRAIN_S,
    ) -> Worker[V] | Callable[[Handler[V]], Worker[V]]:
        """A worker that passes messages to a function, up to `concurrency` at once, each in a
        thread; without the function, a decorator that creates the worker. `drain_s` is the time
        that handlers have to finish after a stop. Raises `Invalid`."""
        if handler is None:
            return lambda function: self.worker(function, concurrency=concurrency, drain_s=drain_s)
        return Worker(self, handler, WorkerOptions.of(handler, concurrency, drain_s))

    # -- what became of them -----------------------------------------------------------------------

    def ack(self, messages: Deliveries[V]) -> TokenResult:
        """Acknowledge messages, so that they are never delivered again. Takes messages, tokens, or
        the result of `receive_slices`. The result names the tokens that came too late: these
        messages are leased to another worker, or settled."""
        return self._settle(messages, self._port.ack)

    def nack(
        self, messages: Deliveries[V], delay_s: Duration | None = None, cause: str = ""
    ) -> TokenResult:
        """Return messages for another delivery, after `delay_s` or after the queue's back-off. A
        message that has used its last delivery goes to the dead letters with this cause."""
        if delay_s is not None:
            delay_s = seconds("delay_s", delay_s, 0, DELAY_S_MAX)
        return self._settle(messages, partial(self._port.nack, delay_s=delay_s, cause=cause))

    def release(self, messages: Deliveries[V]) -> TokenResult:
        """Return messages for immediate redelivery, because no handler has seen them. This delivery
        does not count towards the queue's `deliveries_max`."""
        return self._settle(messages, self._port.release)

    def extend(self, messages: Deliveries[V], lease_s: Duration | None = None) -> TokenResult:
        """Restart the leases of messages, for `lease_s` or for the lease of the queue. Iterating
        and `settling` extend leases by themselves."""
        tokens = tokens_of(messages)
        if lease_s is not None:
            lease_s = seconds("lease_s", lease_s, LEASE_S_MIN, LEASE_S_MAX)
        return self._port.extend(self.name, self.group, tokens, lease_s)

    def reject(self, messages: Deliveries[V], cause: str = "") -> TokenResult:
        """Move messages to the dead letters with this cause."""
        return self._settle(messages, partial(self._port.reject, cause=cause))

    def _settle(self, messages: Deliveries[V], settle: _Settle) -> TokenResult:
        """End the leases of messages by this call of the port; they are not extended any more."""
        tokens = tokens_of(messages)
        if not self.leases.kept:
            return settle(self.name, self.group, tokens)
        with self.leases.settling(tokens):
            return settle(self.name, self.group, tokens)

    def settlement(self, messages: Deliveries[V]) -> Settlement:
        """The settlement with which a transaction acks messages in its commit."""
        tokens = tokens_of(messages)
        self.leases.hand_over(tokens)
        return Settlement(self.group, self.name, tuple(tokens))

    def _processing(self, message: Delivered[V]) -> AbstractContextManager[MarkFailed]:
        """Within, a message is worked on: a span where the program is traced. The function that it
        gives takes the error of a handler."""
        return _UNTRACED

    def _extend_kept(self, tokens: list[str]) -> TokenResult:
        return self._port.extend(self.name, self.group, tokens, None)

    # -- the queue ---------------------------------------------------------------------------------

    def describe(self) -> QueueInfo:
        """The settings of the queue, and the numbers of its messages."""
        return self._port.describe(self.name, self.group)

    def update(self, /, **changes: Unpack[QueueOptions]) -> QueueInfo:
        """Change settings of the queue. Raises `Invalid`, and `Conflict` for a setting that cannot
        change."""
        info = self._port.update(self.name, self.group, in_seconds(changes))
        self.settings = info.settings
        return info

    def redrive(self, limit: int = 1_000, letters: LetterNames = ()) -> int:
        """Publish up to `limit` dead letters to the topic again, the oldest first, or these
        `letters` (up to 1,000: those of `Bus.list_dead_letters`, or texts PARTITION:ID), and return
        their number. Raises `Conflict` if another caller settles some at the same time."""
        whole("limit", limit, 1, REDRIVE_MAX)
        return self._port.redrive(self.name, self.group, limit, letter_ids(letters))

    def discard(self, limit: int = 1_000, letters: LetterNames = ()) -> int:
        """Settle dead letters without moving them, as `redrive` does: they stay in their topic, and
        are neither counted, listed nor moved back any more."""
        whole("limit", limit, 1, REDRIVE_MAX)
        return self._port.discard(self.name, self.group, limit, letter_ids(letters))

    def delete(self) -> None:
        """Delete the queue; the topic and the dead letters stay."""
        self._port.delete(self.name, self.group)


class QueueCalls(BusCalls):
    """The part of a bus that makes and lists queues. Thread-safe."""

    _queue_type: type[Queue[Any]] = Queue

    def list_dead_letters(
        self, topic: str, *, group: str, dead_letter: str | None = None
    ) -> Iterator[DeadLetter]:
        """The dead letters of a queue that are not settled, or those of a group, up to the end,
        with the oldest of each partition first. `dead_letter` is their topic; by default the
        queue's, or TOPIC-GROUP-dead for a group. Raises `TopicNotFound`, `QueueNotFound`."""
        name = TopicName.parse(topic)
        letters = self._dead_letter_topic(name, check_group(group), dead_letter)
        try:
            partitions = len(self._transport.describe_topic(letters).partition_infos)
        except TopicNotFound:  # it is made for the first one
            return
        positions = dict.fromkeys(range(partitions), Position.earliest())
        settled: dict[int, frozenset[int]] = {}
        with suppress(GroupNotFound):  # none is settled
            redriven = self._transport.groups.describe(letters, redrive_group(group, name))
            for part in redriven.partitions:
                settled[part.partition] = settled_in(part.metadata)
                if part.position is not None:
                    positions[part.partition] = Position.parse(part.position)
        ended = False
        while not ended:
            page = self._fetch(letters, positions, RECEIVE_BYTES, 0)
            for message in page.messages():
                if message.offset in settled.get(message.partition, ()):
                    continue
                if origin := dead_origin(message.headers, name, group):
                    yield DeadLetter(message, *origin)
            positions, ended = page.next, page.ended

    def _dead_letter_topic(self, name: TopicName, group: str, chosen: str | None) -> TopicName:
        """The topic of the dead letters of a queue or a group."""
        if chosen is not None:
            return dead_letter_topic(group, name, chosen)
        try:
            return self._transport.queues.describe(name, group).dead_letter
        except QueueNotFound as error:
            try:
                self._transport.groups.describe(name, group)
            except GroupNotFound:
                raise error from None
            return dead_letter_topic(group, name)

    def queue(
        self,
        topic: str,
        *,
        group: str,
        serializer: Decoder[V] | None = None,
        **settings: Unpack[QueueOptions],
    ) -> Queue[V]:
        """A queue over a topic, which is created if it does not exist. `settings` are the fields of
        `QueueSettings`. Without settings, an existing queue is used as it is; with settings, an
        existing queue must have the given settings, and defaults for the others. With a
        `serializer`, messages have the object as `decoded`, see `tms.serializers`. Raises
        `TopicNotFound`, `Conflict`, `Invalid`."""
        name, port = TopicName.parse(topic), self._transport.queues
        check_group(group)
        info: QueueInfo | None = None
        if not settings:
            with suppress(QueueNotFound):
                info = port.describe(name, group)
        if info is None:
            info = port.declare(name, group, QueueSettings.of(in_seconds(settings)))
        outage = self._outage(f"queue {group} of {name}")
        patience = QueuePatience(self._clock, self._timeout_s, outage)
        return self._queue_type(port, name, group, info.settings, patience, serializer)

    def describe_queues(self, topic: str) -> list[QueueInfo]:
        """The queues of a topic, by name. Raises `TopicNotFound`."""
        return self._transport.queues.list_queues(TopicName.parse(topic))


def check_receive(limit: int, wait_s: Duration, bytes_max: int) -> float:
    """The wait in seconds. Raises `Invalid`."""
    whole("limit", limit, 1, RECEIVE_MAX)
    whole("bytes_max", bytes_max, 1, FETCH_BYTES_MAX)
    return seconds("wait_s", wait_s)


@contextmanager
def held(queue: Queue[V], message: Delivered[V]) -> Iterator[HeldMessage]:
    """Within, a message is worked on, and its lease lasts."""
    with queue._processing(message):
        (kept,) = queue.leases.keep((message,))
        try:
            yield kept
        finally:
            queue.leases.release(kept)


@contextmanager
def leased(queue: Queue[V], messages: Sequence[Delivered[V]]) -> Iterator[Ahead[V]]:
    """Messages with what is known of their leases, which last while the block runs."""
    ahead = deque(zip(messages, queue.leases.keep(messages), strict=True))
    try:
        yield ahead
    finally:
        for _, kept in ahead:
            queue.leases.release(kept)


def handled(queue: Queue[V], ahead: Ahead[V], pace: Pace) -> Generator[Delivered[V], None, None]:
    """Messages one by one, each until the next is asked for. Raises `Fenced`."""
    while ahead:
        message, kept = ahead.popleft()
        began_s = queue.patience.clock.monotonic_s()
        try:
            if kept.lost:  # others have it
                continue
            yield message
        finally:
            queue.leases.release(kept)
        if kept.lost and not kept.settled:
            raise lease_lost(queue, message)
        pace.took(queue.patience.clock.monotonic_s() - began_s)


def unhandled(ahead: Ahead[V]) -> list[Delivered[V]]:
    """The messages to be given back."""
    return [message for message, kept in ahead if not kept.lost]


def lease_lost(queue: Queue[V], message: Delivered[V]) -> Fenced:
    """The error for a handler whose message is with another worker by now."""
    return Fenced(
        f"The lease of the message at offset {message.offset} of partition {message.partition} of "
        f"{queue.topic} was lost while it was handled: the queue {queue.group} has delivered it "
        "again, or it was settled elsewhere. Go on with the next one.",
        group=queue.group,
        topic=queue.topic,
        tokens=[message.token],
    )


def tokens_of(messages: Deliveries[V]) -> list[str]:
    """The tokens of messages, one for each run of neighbours. Raises `Invalid`."""
    if isinstance(messages, Delivered):
        return [messages.token]
    if isinstance(messages, Received):
        return messages.tokens()
    if isinstance(messages, str):
        messages = (messages,)
    tokens: list[Token] = []
    partition, first, stop, delivery = -1, 0, 0, ""
    if isinstance(messages, bytes) or not isinstance(messages, Iterable):
        raise _no_token(messages)
    for message in messages:
        if not isinstance(message, Delivered):
            tokens.append(_token(message))
            continue
        _, of, offset, _, _, _, _, _, text, _ = message
        own = text.split(".", 2)[2]  # the number of the delivery and the epoch
        if offset == stop and of == partition and own == delivery and stop - first < MESSAGES_MAX:
            stop += 1
            continue
        if stop > first:
            number, _, epoch = delivery.partition(".")
            tokens.append(Token(partition, first, int(number, 16), int(epoch, 16), stop - first))
        partition, first, stop, delivery = of, offset, offset + 1, own
    if stop > first:
        number, _, epoch = delivery.partition(".")
        tokens.append(Token(partition, first, int(number, 16), int(epoch, 16), stop - first))
    return [str(token) for token in join_tokens(tokens)]


def _token(text: str) -> Token:
    if isinstance(text, str):
        return Token.parse(text)
    raise _no_token(text)


def _no_token(value: object) -> Invalid:
    return Invalid(
        f"A queue takes its messages or their tokens, got {type(value).__name__}.", field="tokens"
    )
