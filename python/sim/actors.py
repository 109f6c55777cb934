"""Those who use the engine in a simulation. Each step is one call or two; what it asked for and
what it was told goes into the history before and after.

Every actor takes any error, and a crash between any two steps, as a user must: what was not
answered is repeated in the same words, or given up and left open.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from sim.history import (
    Acknowledged,
    Asked,
    Ended,
    Found,
    Place,
    Read,
    Seen,
    Sent,
    is_tombstone,
)
from sim.world import World, quietly
from tms.errors import (
    Conflict,
    Fenced,
    OutOfOrderSequence,
    SequenceReused,
    TMSError,
    TransactionConflict,
    TransactionEnded,
    TransactionNotFound,
)
from tms.log.pending import PendingAppend
from tms.model.block import decode, encode
from tms.model.ids import MessageId
from tms.model.log import Fetched, NewBlock, PartitionPosition
from tms.model.placing import places
from tms.model.position import Position
from tms.model.snapshot import POINTERS_PER_MS, Isolation
from tms.model.topic import Durability, TopicName
from tms.model.transaction import (
    Commit,
    PositionChange,
    PositionKey,
    TopicBlock,
    TopicStaged,
)
from tms.transactions.early import Range

WRITTEN, SYNCED = Durability.WRITTEN, Durability.SYNCED
SOURCE: Place = ("a", 0)  # what groups consume
SHARED = "shared"  # the topic that members of a group share
COMPACTED = "kept"  # a topic that is compacted
PEOPLE = "people"  # another one with keys, from which messages are erased
KEYS = 6
JOBS: Place = ("jobs", 0)  # what a queue hands out
OUTPUT: Place = ("made", 0)
_COUNTS, _OVERTAKEN = 1, 2  # producers of what is staged: a commit names the first one only


class Actor(Protocol):
    """One user."""

    def step(self) -> None:
        """Do the next thing."""
        ...

    def settle(self) -> bool:
        """The run ends and nothing fails any more: finish; whether there is nothing left to do."""
        ...


class Remembering(Actor, Protocol):
    """A user who remembers what it has read."""

    def after_power_loss(self) -> None:
        """What was read may not be there any more."""
        ...


def topic_of(place: Place) -> TopicName:
    """The name of a place's topic."""
    return TopicName.parse(place[0])


def durability_at(world: World, place: Place) -> Durability:
    """How durably to publish to a place: what groups consume is synced, or they would stand after
    messages that a power loss took."""
    if place in (SOURCE, JOBS) or place[0] in (SHARED, COMPACTED, PEOPLE):
        return SYNCED
    return world.random.choice((WRITTEN, SYNCED))


def keyed(world: World, name: str, tombstone: bool = False) -> str:
    """A value that says its key; no other one, whatever its name, has it as a part."""
    return f"k{world.random.randrange(KEYS)}={'-' * tombstone}{name};"


def block(
    values: tuple[str, ...], producer: int = 0, sequence: int = 0, key: bytes | None = None
) -> bytearray:
    """A block of these values, all with one key, or each with its own, if it says one. A header
    stands for the value of a tombstone."""
    raw = [None if is_tombstone(value) else value.encode() for value in values]
    names = None
    if key is not None or any("=" in value for value in values):
        names = [key or _key_of(value) for value in values]
    headers = None
    if None in raw:
        headers = [{"value": value.encode()} if is_tombstone(value) else None for value in values]
    return encode(raw, names, headers, producer_id=producer, producer_sequence=sequence)


def _key_of(value: str) -> bytes | None:
    key, says_it, _ = value.partition("=")
    return key.encode() if says_it else None


def seen(fetched: Fetched, position: Position) -> tuple[Seen, ...]:
    """The messages of a fetch of one partition, after a position."""
    after = str(position.id) if position.id is not None else ""
    found = []
    for stored in fetched.blocks:
        columns = decode(stored.block)
        values = columns.values()
        if columns.has_tombstones:
            named = (one.get("value") for one in columns.headers())
            values = [value or name for value, name in zip(values, named, strict=True)]
        for (_, place), value in zip(places(stored), values, strict=True):
            if (id := str(place)) > after:
                found.append((id, (value or b"").decode()))
    return tuple(found)


class Producer:
    """Publishes plainly, with a producer id: repeats what was not answered."""

    def __init__(self, world: World, name: str, place: Place) -> None:
        self._world = world
        self._name, self._place = name, place
        self._made = 0
        self._values: tuple[str, ...] = ()
        self._durability = SYNCED
        self._pending: PendingAppend | None = None
        self._life = 0
        self._begin_anew()

    def step(self) -> None:
        """Publish, repeat, or look for the answer."""
        if not self._values:
            self._make()
        if self._pending is None or self._life != self._world.life:
            self._send()
        self._look()

    def settle(self) -> bool:
        """Until everything was answered."""
        if self._values:
            self.step()
        return not self._values

    def _begin_anew(self) -> None:
        self._producer_id = self._world.random.getrandbits(62) | 1
        self._sequence = 0
        self._values, self._pending = (), None

    def _make(self) -> None:
        world = self._world
        count = world.random.choice((1, 1, 2, 3))
        self._values = tuple(f"{self._name}-{self._made + i}" for i in range(count))
        self._made += count
        self._durability = durability_at(world, self._place)
        self._pending = None
        world.history.add(Sent(world.history.now(), self._place, self._values))

    def _send(self) -> None:
        new = self._new()
        self._life, self._pending = self._world.life, None
        quietly(lambda: self._submit(new))

    def _new(self) -> NewBlock:
        return NewBlock(self._place[1], block(self._values, self._producer_id, self._sequence))

    def _submit(self, new: NewBlock) -> None:
        engine = self._world.engine
        self._pending = engine.submit(topic_of(self._place), [new], self._durability)

    def _look(self) -> None:
        if self._pending is None or not self._pending.done():
            return
        pending, self._pending = self._pending, None
        try:
            appended = pending.result(0)[0]
        except (OutOfOrderSequence, SequenceReused):  # what came before was lost with the power
            self._begin_anew()
            return
        except TMSError:
            return
        messages = tuple(zip(map(str, appended.ids()), self._values, strict=True))
        synced = self._durability is SYNCED
        history = self._world.history
        history.add(Acknowledged(history.now(), self._place, messages, synced))
        self._sequence += 1
        self._values = ()


class Work(NamedTuple):
    """A commit that is to be asked for until there is an answer."""

    name: str
    request: Callable[[], Commit]
    synced: bool


def making(
    name: str, output: Place, values: tuple[str, ...], synced: bool = True, **with_them: Any
) -> Work:
    """A commit of messages that were made of others, with what says that those are done."""

    def request() -> Commit:
        new = TopicBlock(topic_of(output), NewBlock(output[1], block(values)))
        durability = SYNCED if synced else WRITTEN
        return Commit(token=name, blocks=(new,), durability=durability, **with_them)

    return Work(name, request, synced)


class Committer:
    """Commits batches over several partitions in one request each."""

    def __init__(self, world: World, name: str, places: tuple[Place, ...]) -> None:
        self._world = world
        self._name, self._places = name, places
        self._made = 0
        self._work: Work | None = None

    def step(self) -> None:
        """Commit, or repeat what was not answered; seldom give it up."""
        if self._work is None:
            self._work = self._make()
        elif self._world.random.random() < 0.05:
            self._work = None
            return
        if commit(self._world, self._work) is not None:
            self._work = None

    def settle(self) -> bool:
        """Until everything was answered."""
        if self._work is not None:
            self.step()
        return self._work is None

    def _make(self) -> Work:
        world, random = self._world, self._world.random
        self._made += 1
        name = f"{self._name}-{self._made}"
        places = random.sample(self._places, random.randint(1, min(3, len(self._places))))
        parts = []
        for number, place in enumerate(places):
            values = tuple(f"{name}.{number}.{i}" for i in range(random.choice((1, 1, 2))))
            parts.append((place, values))
        synced = any(durability_at(world, place) is SYNCED for place in places)
        for place, values in parts:
            world.history.add(Sent(world.history.now(), place, values, name))
        world.history.add(Asked(world.history.now(), name))
        return Work(name, lambda: _request(name, parts, synced), synced)


def _request(name: str, parts: list[tuple[Place, tuple[str, ...]]], synced: bool) -> Commit:
    blocks = tuple(
        TopicBlock(topic_of(place), NewBlock(place[1], block(values))) for place, values in parts
    )
    return Commit(token=name, blocks=blocks, durability=SYNCED if synced else WRITTEN)


def commit(world: World, work: Work) -> bool | None:
    """Ask for a commit; whether it was done, None when that is not known."""
    try:
        world.engine.transactions.commit(work.request())
        done = True
    except (TransactionConflict, TransactionEnded, Fenced):
        done = False
    except Conflict as error:
        if "position" not in error.details:
            return None
        done = False
    except TMSError:
        return None
    world.history.add(Ended(world.history.now(), work.name, done, work.synced))
    return done


class Interactive:
    """Begins, publishes step by step, then commits, aborts, or is never heard of again."""

    def __init__(self, world: World, name: str, places: tuple[Place, ...]) -> None:
        self._world = world
        self._name, self._places = name, places
        self._made = 0
        self._forget()

    def step(self) -> None:
        """The next thing in the life of a transaction."""
        quietly(self._step)

    def settle(self) -> bool:
        """Ask how the last one ended; what is open is aborted."""
        if self._id and not self._asked:
            quietly(lambda: self._world.engine.transactions.abort(self._id))
        if self._id:
            quietly(self._ask)
        return not self._id

    def _forget(self) -> None:
        self._id = 0
        self._current = ""
        self._asked = False
        self._in_doubt = False  # whether everything that was published is there
        self._sent = 0
        self._staged: dict[Place, int] = {}  # blocks

    def _step(self) -> None:
        random, transactions = self._world.random, self._world.engine.transactions
        if not self._id:
            if not self._current:
                self._made += 1
                self._current = f"{self._name}-{self._made}"
            timeout_s = random.choice((2, 30))
            begun = transactions.begin(timeout_s=timeout_s, token=self._current)
            self._id = begun.transaction_id
        elif self._asked:
            self._ask()
        elif self._in_doubt:
            self._give_up()
        elif random.random() < 0.6:
            self._publish()
        elif random.random() < 0.6:
            self._commit()
        elif random.random() < 0.6:
            self._give_up()
        else:
            self._forget()  # it stays open until its time is over

    def _publish(self) -> None:
        world, place = self._world, self._world.random.choice(self._places)
        name = f"{self._current}.{self._sent}"
        values, overtaken = (name,), (f"{name}-overtaken",)
        if place[0] in (PEOPLE, COMPACTED):
            values, overtaken = (keyed(world, name),), (keyed(world, overtaken[0]),)
        self._sent += 1
        world.history.add(Sent(world.history.now(), place, values, self._current))
        new = NewBlock(place[1], block(values))
        self._in_doubt = True
        if world.random.random() < 0.4:
            mine = NewBlock(place[1], block(values, _COUNTS, self._sent))
            other = NewBlock(place[1], block(overtaken, _OVERTAKEN, self._sent))
            world.engine.transactions.stage(topic_of(place), [other, mine], self._id)
            self._staged[place] = self._staged.get(place, 0) + 1
        else:
            world.engine.transactions.submit(topic_of(place), [new], self._id).result(0)
        self._in_doubt = False

    def _give_up(self) -> None:
        with suppress(TransactionEnded, TransactionNotFound):
            self._world.engine.transactions.abort(self._id)
        self._end(False)

    def _commit(self) -> None:
        history = self._world.history
        self._asked = True
        history.add(Asked(history.now(), self._current))
        self._world.engine.transactions.commit(self._request())
        self._end(True)

    def _request(self) -> Commit:
        staged = tuple(
            TopicStaged(topic_of(place), place[1], blocks, (_COUNTS,))
            for place, blocks in self._staged.items()
        )
        return Commit(self._id, durability=SYNCED, staged=staged)

    def _ask(self) -> None:
        try:
            outcome = self._world.engine.transactions.describe(self._id).outcome
        except TransactionNotFound:
            outcome = "lost"
        if outcome == "open":
            self._world.engine.transactions.commit(self._request())
            outcome = "committed"
        self._end(outcome == "committed")

    def _end(self, committed: bool) -> None:
        history = self._world.history
        history.add(Ended(history.now(), self._current, committed))
        self._forget()


class Foreign:
    """Publishes under pointers of a transaction manager elsewhere, and rolls everything back."""

    def __init__(self, world: World, name: str, place: Place) -> None:
        self._world = world
        self._name, self._place = name, place
        self._made = 0
        self._ranges: list[Range] = []
        self._pointer = 0

    def step(self) -> None:
        """Publish a little, then roll back."""
        if self._pointer and self._world.random.random() < 0.5:
            self.settle()
        else:
            quietly(self._publish)

    def settle(self) -> bool:
        """Roll everything back."""
        if not self._ranges:
            self._pointer = 0
            return True
        quietly(self._roll_back)
        return False

    def _publish(self) -> None:
        world = self._world
        if not self._pointer:
            self._made += 1
            self._pointer = world.clock.now_ms() * POINTERS_PER_MS - world.random.randint(1, 999)
            self._end()
        name = f"{self._name}-{self._made}"
        values = (f"{name}.{world.random.getrandbits(40):x}",)
        world.history.add(Sent(world.history.now(), self._place, values, name))
        new = NewBlock(self._place[1], block(values))
        topic = topic_of(self._place)
        # Where it would stand if the answer is lost, its client does not know: all of the topic.
        whole = Range(topic, self._place[1], (0, 0), (2**62, 0), self._pointer)
        self._ranges = [whole]
        world.engine.transactions.submit(topic, [new], self._pointer).result(0)

    def _roll_back(self) -> None:
        self._world.engine.transactions.roll_back(self._ranges[0])
        self._ranges = []

    def _end(self) -> None:
        history = self._world.history
        history.add(Ended(history.now(), f"{self._name}-{self._made}", False))


class Reader:
    """Reads a partition over and over."""

    def __init__(self, world: World, name: str, place: Place, committed: bool) -> None:
        self._world = world
        self._name, self._place = name, place
        self._committed = committed
        self._pass = 0
        self._life = 0
        self._powers = 0
        self._position = Position.earliest()

    def step(self) -> None:
        """Read on; now and then from the beginning."""
        random = self._world.random
        if random.random() < 0.04:
            self._begin_anew()
        bytes_max = random.choice((1, 300, 1 << 20))
        quietly(lambda: self._read(bytes_max))

    def glance(self) -> None:
        """Read at the tail while somebody else is in the middle of something."""
        self._read(1 << 20, cached=True)

    def look(self, after: str) -> None:
        """Read what comes after an id, however that is found."""
        self._begin_anew()
        self._position = Position.after(MessageId.parse(after))
        quietly(lambda: self._read(1 << 20))

    def settle(self) -> bool:
        """Nothing is left to do."""
        return True

    def after_power_loss(self) -> None:
        """What was read may not be there any more."""
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._pass += 1
        self._position = Position.earliest()

    def _read(self, bytes_max: int, cached: bool = False) -> None:
        world, (topic, partition) = self._world, self._place
        isolation = Isolation.COMMITTED if self._committed else Isolation.UNCOMMITTED
        began, position = world.history.now(), self._position
        at = [PartitionPosition(partition, position)]
        name = TopicName.parse(topic)
        if cached:
            looked = world.engine.fetch_cached(name, at, bytes_max, isolation)
            if looked is None:
                return
            fetched = looked
        else:
            fetched = world.engine.fetch(name, at, bytes_max, isolation=isolation)
        messages = seen(fetched, position)
        held = fetched.held.get(partition, 0)
        world.history.add(
            Read(
                began,
                self._name,
                self._pass,
                self._place,
                self._committed,
                "" if position.id is None else str(position.id),
                messages,
                world.history.now(),
                not fetched.blocks or bool(held),
                _name_of(world, held),
            )
        )
        if messages:
            self._position = Position.after(MessageId.parse(messages[-1][0]))


def _name_of(world: World, pointer: int) -> str:
    if not pointer:
        return ""
    tokens = world.engine.transactions.manager.state.tokens
    return next((token for token, id in tokens.items() if id == pointer), "?")


class Transformer:
    """One of several that together make a message of each message, exactly once."""

    GROUP = "transformers"

    def __init__(self, world: World, name: str, source: Place, output: Place) -> None:
        self._world = world
        self._name, self._source, self._output = name, source, output
        self._made = 0
        self._position: Position | None = None
        self._known = False
        self._work: Work | None = None
        self._next: Position | None = None

    def step(self) -> None:
        """Look where the group stands, or process the next few."""
        quietly(self._step)

    def settle(self) -> bool:
        """Until everything was answered."""
        if self._work is not None:
            self._finish()
        return self._work is None

    def _step(self) -> None:
        if self._work is not None:
            self._finish()
        elif not self._known:
            self._look()
        else:
            self._process()

    def _look(self) -> None:
        history, topic = self._world.history, topic_of(self._source)
        began = history.now()
        found = self._world.engine.transactions.positions(self.GROUP, topic)
        self._position = found.get(self._source[1])
        self._known = True
        id = "" if self._position is None else str(self._position.id)
        history.add(Found(began, self.GROUP, self._source, id, history.now()))

    def _process(self) -> None:
        world, random = self._world, self._world.random
        start = self._position or Position.earliest()
        at = [PartitionPosition(self._source[1], start)]
        fetched = world.engine.fetch(topic_of(self._source), at, random.choice((1, 400)))
        messages = seen(fetched, start)
        if not messages:
            return
        self._made += 1
        name = f"{self._name}-{self._made}"
        sources = tuple(value for _, value in messages)
        values = tuple(f"{name}.{number}" for number in range(len(sources)))
        last = Position.after(MessageId.parse(messages[-1][0]))
        key = PositionKey(self.GROUP, topic_of(self._source), self._source[1])
        expected = "" if self._position is None else str(self._position)
        synced = random.random() < 0.7
        history = world.history
        history.add(Sent(history.now(), self._output, values, name, sources))
        history.add(Asked(history.now(), name, ((self.GROUP, self._source, str(last.id)),)))

        change = PositionChange(key, last, expected)
        self._work = making(name, self._output, values, synced, positions=(change,))
        self._next = last
        self._finish()

    def _finish(self) -> None:
        assert self._work is not None
        done = commit(self._world, self._work)
        if done is None:
            return
        self._work = None
        if done:
            self._position = self._next
        else:
            self._known = False
