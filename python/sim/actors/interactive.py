"""Actors whose transactions take several steps: transactions of this engine, and of a manager
elsewhere."""

from contextlib import suppress

from sim.actors.actor import COMPACTED, PEOPLE, SYNCED, block, keyed, topic_of
from sim.history import Asked, Ended, Place, Sent
from sim.world import World, quietly
from tms.errors import TransactionEnded, TransactionNotFound
from tms.model.message import NewBlock
from tms.model.snapshot import POINTERS_PER_MS
from tms.model.transaction import Commit, TopicStaged
from tms.transactions.uncommitted import StoredRange

_INVALIDATED = 4  # one pointer in so many, chosen without drawing
_COUNTS, _OVERTAKEN = 1, 2  # producers of staged blocks: a commit names only the first


class Interactive:
    """Begins, publishes step by step, then commits, aborts, or disappears."""

    def __init__(self, world: World, name: str, places: tuple[Place, ...]) -> None:
        self._world = world
        self._name, self._places = name, places
        self._made = 0
        self._forget()

    def step(self) -> None:
        """Take the next step in the life of a transaction."""
        quietly(self._step)

    def settle(self) -> bool:
        """Ask for the outcome of the last transaction; abort it if it is open."""
        if self._id:
            quietly(self._ask if self._asked else self._give_up)
        return not self._id

    def _forget(self) -> None:
        self._id = 0
        self._current = ""
        self._asked = False
        self._in_doubt = False  # True if some of the publishes may not be stored
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
            self._forget()  # it stays open until it times out

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
    """Publishes under pointers of a transaction manager elsewhere. Everything is rolled back, by
    the client or because an operator invalidates the transaction."""

    def __init__(self, world: World, name: str, place: Place) -> None:
        self._world = world
        self._name, self._place = name, place
        self._made = 0
        self._ranges: list[StoredRange] = []
        self._late: list[StoredRange] = []  # ranges that may have been stored after a rollback
        self._pointer = 0

    def step(self) -> None:
        """Publish a little, then roll back."""
        if not self._pointer or self._world.random.random() >= 0.5:
            quietly(self._publish)
        elif self._ranges:
            quietly(self._roll_back)
        else:
            self._pointer = 0

    def settle(self) -> bool:
        """Roll everything back, and repeat it for messages that may have come late: no other client
        knows that the transaction is over."""
        if not self._ranges and self._late:
            self._ranges = [self._late.pop()]
        if not self._ranges:
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
        # If the answer is lost, the client does not know the range: it takes the whole topic.
        whole = StoredRange(topic, self._place[1], (0, 0), (2**62, 0), self._pointer)
        self._ranges = [whole]
        try:
            world.engine.transactions.submit(topic, [new], self._pointer).result(0)
        except BaseException:
            self._late.append(whole)
            raise

    def _roll_back(self) -> None:
        transactions, pointer = self._world.engine.transactions, self._ranges[0].write_pointer
        if pointer % _INVALIDATED:
            transactions.roll_back(self._ranges[0])
        else:
            with suppress(TransactionNotFound):  # nothing was stored
                transactions.invalidate(pointer)
        self._ranges = []

    def _end(self) -> None:
        history = self._world.history
        history.add(Ended(history.now(), f"{self._name}-{self._made}", False))
