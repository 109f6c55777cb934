"""A view: a mapping that is kept current from the log.

    read to the end ─▶ ready ─▶ a thread follows the log ─▶ newest value of each key
                         └─ at=…: stays as it was then

Invariants

* `expect(key)` is behind everything of the key that was applied: a publish that expects it is
  stored only if nothing of the key has come since.
"""

import threading
import warnings
from collections.abc import Callable, ItemsView, Iterator, Mapping, ValuesView
from itertools import count
from typing import Any, Generic, NamedTuple, Self, TypeVar, overload
from weakref import finalize, ref

from tms.client.batching import KnownTopic
from tms.client.calls import BusCalls
from tms.client.cursor import Start, as_position, asks, page
from tms.client.transport import (
    Channel,
    FetchRequest,
    LocalTransport,
    RemoteTransport,
    open_channel,
)
from tms.client.view_state import Apply, ViewSnapshot, ViewState
from tms.errors import Closed, Conflict, Invalid, OffsetOutOfRange, TMSError, ViewFailed
from tms.model.ids import MessageId
from tms.model.keys import Partitioner
from tms.model.message import NOTHING, Fetched, PartitionPosition, in_turn
from tms.model.position import Position
from tms.model.quantity import Duration, timeout
from tms.model.serializer import Decoder
from tms.model.topic import TopicInfo, TopicName
from tms.runtime import forks
from tms.runtime.clock import Clock
from tms.runtime.retrying import Outage, retrying

V = TypeVar("V")
FETCH_BYTES = 4 << 20
WAIT_S = 5.0


class Current(NamedTuple, Generic[V]):
    """The value of a key, and what a publish expects that rests on it."""

    value: V | None
    expect: MessageId


class ViewFold(NamedTuple, Generic[V]):
    """The functions of a view: the value of a key, and the callback that gets it."""

    apply: Apply[V] | None
    on_change: Callable[[bytes, V | None], None] | None
    serializer: Decoder[V] | None = None


class ViewPatience(NamedTuple):
    """The time for which a view repeats a call, and the outages that its thread survives."""

    timeout_s: float
    outage: Outage


class View(Mapping[bytes, V]):
    """A mapping from each key to its newest value, or to the state made of its messages; created by
    `Bus.view`. Thread-safe. Close it, or use it as a context manager.

    After a permanent failure, such as a deleted topic, every further use raises the error.
    """

    def __init__(
        self,
        name: TopicName,
        transport: LocalTransport | RemoteTransport,
        known: Callable[[], KnownTopic],
        clock: Clock,
        patience: ViewPatience,
        fold: ViewFold[V],
    ) -> None:
        self._name = name
        self._transport = transport
        self._known = known
        self._clock = clock
        self._timeout_s, self._outage = patience
        self._on_change = fold.on_change
        self._state: ViewState[V] = ViewState(fold.apply, fold.serializer)
        self._generation = 0
        self._partitioner = Partitioner.CRC32C
        self._lock = threading.RLock()
        self._error: TMSError | None = None
        self._channel: Channel | None = None
        self._thread: threading.Thread | None = None
        self._closed = self._outage.ended
        self._rounds = count()

    # --- reading ----------------------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        return self is other  # it changes: compare `dict(view)`

    def __repr__(self) -> str:
        state = "failed" if self._error else "closed" if self._closed.is_set() else "current"
        keys = len(self._state.entries)
        return f"<{type(self).__name__} of {self._name}, {keys} keys, {state}>"

    def __hash__(self) -> int:
        return id(self)

    def __getitem__(self, key: bytes) -> V:
        self._check()
        return self._state.entries[key].value

    def __iter__(self) -> Iterator[bytes]:
        self._check()
        with self._lock:
            return iter(list(self._state.entries))

    def __len__(self) -> int:
        self._check()
        return len(self._state.entries)

    def __contains__(self, key: object) -> bool:
        self._check()
        return key in self._state.entries

    def items(self) -> ItemsView[bytes, V]:
        """All keys with their values, as of one moment."""
        return self._copy().items()

    def values(self) -> ValuesView[V]:
        """All values, as of one moment."""
        return self._copy().values()

    def last_id(self, key: bytes) -> MessageId | None:
        """The id of the newest message of a key in the view; None for other keys."""
        self._check()
        entry = self._state.entries.get(key)
        return None if entry is None else entry.id

    def expect(self, key: bytes) -> MessageId:
        """The `expect` for a publish of the key: the message is stored only if this view has seen
        all messages of the key. Call this before you read the value on which the publish depends,
        or use `current`, which returns both."""
        self._check()
        with self._lock:
            read = self._state.read
            return read[self._partitioner.partition_of(key, len(read))]

    def current(self, key: bytes) -> Current[V]:
        """The value of a key, None if it has none, and the `expect` of a publish that depends on
        this value."""
        self._check()
        with self._lock:
            entry = self._state.entries.get(key)
            return Current(None if entry is None else entry.value, self.expect(key))

    def snapshot(self) -> ViewSnapshot[V]:
        """A copy of the view, with the position up to which it was read."""
        self._check()
        with self._lock:
            state = self._state
            places = {p: (id, state.offsets[p]) for p, id in state.read.items()}
            return ViewSnapshot(dict(state.entries), places, self._generation)

    def refresh(self) -> None:
        """Read everything that is visible now: after the call, the view has at least all messages
        that were committed before it. Raises the error that prevents reading."""
        self._check()
        if not self._state.stops:
            self._grow()
            self._read_on()

    def close(self) -> None:
        """Stop following; the content stays readable. A second call does nothing."""
        self._closed.set()
        if self._channel is not None:
            self._end.detach()
            self._channel.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    # --- the bus's --------------------------------------------------------------------------------

    def load(self, info: TopicInfo, at: Start | None, snapshot: ViewSnapshot[V] | None) -> None:
        """Read the topic to its end, or up to `at`, starting from a snapshot if there is one.
        Raises `Conflict`, and `OffsetOutOfRange` if the topic does not continue where the snapshot
        ends."""
        self._generation = info.generation
        self._partitioner = info.settings.partitioner
        state = self._state
        for one in info.partition_infos:
            state.read[one.partition] = NOTHING
            state.offsets[one.partition] = one.start_offset
        if snapshot is not None:
            self._begin_with(snapshot)
        if at is not None:
            state.stops.update(self._transport.offsets(self._name, as_position(at)))
        self._read_on()
        state.gone = None

    def follow(self) -> None:
        """Keep the view current from now on."""
        self._channel = open_channel(self._transport)
        run = (ref(self), self._closed)
        self._thread = threading.Thread(target=_run, args=run, name="tms-view", daemon=True)
        self._end = finalize(self, _dropped, self._name, self._channel, self._closed)
        self._end.atexit = False  # nothing is lost at exit
        self._thread.start()
        forks.in_child(self._forked)

    def _forked(self) -> None:
        """In a forked child: no thread follows, and a batch may have been applied by half."""
        self._lock = threading.RLock()
        self._closed = threading.Event()
        self._thread = None
        self._error = Closed(
            f"The view of {self._name} is kept by the process from which this one was forked; make "
            "another one here."
        )

    def _begin_with(self, snapshot: ViewSnapshot[V]) -> None:
        state = self._state
        if snapshot.generation != self._generation:
            raise Conflict(
                f"The topic {self._name} was created anew since the snapshot; begin without it."
            )
        for partition, (id, offset) in snapshot.positions.items():
            if offset < state.offsets.get(partition, 0):
                raise OffsetOutOfRange(
                    f"Partition {partition} of {self._name} has lost messages since the snapshot, "
                    f"from offset {offset} on; begin without it.",
                    earliest=state.offsets[partition],
                )
            state.read[partition], state.offsets[partition] = id, offset
        state.entries.update(snapshot.entries)

    def _copy(self) -> dict[bytes, V]:
        self._check()
        with self._lock:
            return {key: entry.value for key, entry in self._state.entries.items()}

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _grow(self) -> None:
        """Partitions may have been added, or the topic created anew."""
        known = self._known()
        with self._lock:
            self._partitioner = known.partitioner
            for partition in range(len(self._state.read), known.partitions):
                self._state.read[partition] = NOTHING
                self._state.offsets[partition] = 0

    def _asks(self) -> list[list[PartitionPosition]]:
        with self._lock:
            state = self._state
            wanted = ((p, id) for p, id in state.read.items() if p not in state.ended)
            return asks({partition: Position.after(id) for partition, id in wanted})

    def _read_on(self) -> None:
        """Read until nothing more is there."""
        for turn in self._asks():
            while turn:
                fetched = self._fetch(turn)
                self._take(turn, fetched)
                turn = [] if fetched.ended else self._again(turn)

    def _again(self, turn: list[PartitionPosition]) -> list[PartitionPosition]:
        """The positions at which these partitions are to be read on."""
        state = self._state
        with self._lock:
            return [
                PartitionPosition(partition, Position.after(state.read[partition]))
                for partition, _ in turn
                if partition not in state.ended
            ]

    def _fetch(self, turn: list[PartitionPosition]) -> Fetched:
        return retrying(
            lambda _: self._transport.fetch(self._name, turn, FETCH_BYTES),
            self._clock,
            self._timeout_s,
            what=f"fetch for the view of {self._name}",
        )

    def _take(self, turn: list[PartitionPosition], fetched: Fetched) -> None:
        """Apply an answer."""
        found = page(str(self._name), dict(turn), [fetched])
        with self._lock:
            try:
                for key, value in self._state.take(found):
                    if self._on_change is not None:
                        self._on_change(key, value)
            except Exception as error:  # of `apply` or `on_change`; half a batch may be applied
                self._fail(error)
                raise

    def _goes_on(self) -> bool:
        """Take what comes next. True unless it has ended."""
        try:
            turn, fetched = retrying(self._next, self._clock, self._timeout_s, outage=self._outage)
            self._take(turn, fetched)
            return True
        except TMSError as error:
            if not self._closed.is_set():
                self._error = self._error or error  # `_take` may have said more
        except Exception as error:
            self._fail(error)
        return False

    def _fail(self, error: Exception) -> None:
        """It cannot go on."""
        if self._error is None:
            self._error = ViewFailed(f"The view of {self._name} cannot go on: {error!r}")
            self._error.__cause__ = error

    def _next(self, left_s: float) -> tuple[list[PartitionPosition], Fetched]:
        """The next fetch, and its answer."""
        channel = self._channel
        assert channel is not None, "follow has not begun"
        self._grow()
        turns = self._asks()
        round, place = divmod(next(self._rounds), len(turns))
        turn = in_turn(turns[place], round)
        wait_s = WAIT_S / len(turns)
        pending = channel.begin_fetch(
            FetchRequest(self._name, turn, FETCH_BYTES, wait_s, goes_on=True)
        )
        try:
            return turn, pending.result(wait_s + left_s)
        except Closed:
            raise
        except TMSError:
            channel.reset()
            raise


def _run(held: "ref[View[Any]]", closed: threading.Event) -> None:
    """Keep a view current until it is closed or dropped."""
    while not closed.is_set() and (view := held()) is not None and view._goes_on():
        del view  # so that it can be dropped


def _dropped(name: TopicName, channel: Channel, closed: threading.Event) -> None:
    """A view was dropped without `close`."""
    closed.set()
    channel.close()
    warnings.warn(f"A view of {name} was not closed.", ResourceWarning, stacklevel=2)


class ViewCalls(BusCalls):
    """The part of a bus that makes views. Thread-safe."""

    @overload
    def view(
        self,
        topic: str,
        *,
        apply: None = None,
        at: Start | None = None,
        snapshot: ViewSnapshot[bytes] | None = None,
        on_change: Callable[[bytes, bytes | None], None] | None = None,
        timeout_s: Duration | None = None,
    ) -> View[bytes]: ...

    @overload
    def view(
        self,
        topic: str,
        *,
        serializer: Decoder[V],
        at: Start | None = None,
        snapshot: ViewSnapshot[V] | None = None,
        on_change: Callable[[bytes, V | None], None] | None = None,
        timeout_s: Duration | None = None,
    ) -> View[V]: ...

    @overload
    def view(
        self,
        topic: str,
        *,
        apply: Apply[V],
        at: Start | None = None,
        snapshot: ViewSnapshot[V] | None = None,
        on_change: Callable[[bytes, V | None], None] | None = None,
        timeout_s: Duration | None = None,
    ) -> View[V]: ...

    def view(
        self,
        topic: str,
        *,
        apply: Apply[V] | None = None,
        serializer: Decoder[V] | None = None,
        at: Start | None = None,
        snapshot: ViewSnapshot[V] | None = None,
        on_change: Callable[[bytes, V | None], None] | None = None,
        timeout_s: Duration | None = None,
    ) -> View[V]:
        """The newest value of each key as a mapping, read to the end and kept current.

        A tombstone removes its key; messages without a key are left out. With `apply`, the value is
        the result of `apply(previous, message)` for each message of the key; None removes the key.
        With a `serializer`, the value is the object in the newest message. At most one of the two
        may be given. With `at` (an id, a time or a position) the view has everything before that,
        and never changes. With a `snapshot` the view starts from that instead of the topic's first
        message. `on_change(key, value)` is called in the thread that reads. Keep a reference to the
        view: it ends when it is garbage-collected. Raises `TopicNotFound`, `Invalid`, `Conflict`,
        `OffsetOutOfRange`, `Undecodable`, and the errors of `apply`.
        """
        for name, function in (("apply", apply), ("on_change", on_change)):
            if function is not None and not callable(function):
                raise Invalid(f"{name} is a function, got {function!r:.80}.", field=name)
        if apply is not None and serializer is not None:
            raise Invalid(
                "A view has either apply or serializer: let apply decode its message, with "
                "message.decode(serializer).",
                field="serializer",
            )
        parsed = TopicName.parse(topic)
        limit_s = timeout(timeout_s, self._timeout_s)
        made: View[V] = View(
            parsed,
            self._transport,
            lambda: self._publishing.known(topic) or self._refresh_topic(topic),
            self._clock,
            ViewPatience(limit_s, self._outage(f"view of {parsed}")),
            ViewFold(apply, on_change, serializer),
        )
        info = self._transport.describe_topic(parsed)
        self._publishing.learn(topic, info)  # it may have been of an earlier generation
        made.load(info, at, snapshot)
        if at is not None:
            return made
        made.follow()
        return self._opened(made)
