"""Actors that follow as a consumer does: over connections to the service that end, are cut and left
unread, and by fetching where they cannot follow."""

from random import Random

from sim.actors.actor import seen
from sim.actors.readers import held_name
from sim.history import Place, Read
from sim.serving import Following, Servers
from sim.world import World
from tms.client.transport import FetchRequest
from tms.engine.engine import Engine
from tms.errors import TMSError
from tms.model.message import Fetched, PartitionPosition
from tms.model.position import Position
from tms.model.topic import TopicName

TURNS_MAX = 40  # of the loop, per step
PARTS_MAX = 1_000  # read in one round of settling
WAIT_S = 50.0  # a missed wake-up shows long before


class FollowingReader:
    """Follows a partition over and over. It draws from a `Random` of its own, so that it changes
    nothing in the steps of the other actors."""

    def __init__(
        self, world: World, servers: Servers, name: str, place: Place, random: Random
    ) -> None:
        self._world = world
        self._servers = servers
        self._name, self._place = name, place
        self._random = random
        self._pass = 0
        self._position = Position.earliest()
        self._last = ""  # the id that was read last, whatever the position
        self._following: Following | None = None
        self._since = 0  # a moment at which the unread messages were not there yet

    def step(self) -> None:
        """Read on, or disturb the connection."""
        random = self._random
        if random.random() < 0.03:
            self._leave()
            self.after_power_loss()
        following = self._following
        if following is None:
            self._begin()
            return
        if not self._world.lives(following.server.engine):
            self._cut(following)  # the connection has died
            return
        match random.randrange(24):
            case 0 | 1 | 2:
                self._cut(following)
            case 3:
                following.drain()
            case 4 | 5:  # the connection is slow
                self._turn(following, random.randint(1, TURNS_MAX))
            case _:
                self._turn(following, random.randint(1, TURNS_MAX))
                self._receive(following, random.choice((1, 100, 1 << 20, 1 << 20, 1 << 20)))
                if self._world.wakes and following.is_idle and not self._is_about_to_wake():
                    self._note_idle(following.server.engine)

    def _is_about_to_wake(self) -> bool:
        """True if queued background work may announce the end of a transaction."""
        manager = self._world.engine.transactions.manager
        return bool(self._world.background.waiting and manager._watchers._waiting)

    def settle(self) -> bool:
        """Nothing fails any more: read everything without waiting, over a new connection if the
        world wakes no waiting reader."""
        following = self._following
        if following is not None and not self._world.lives(following.server.engine):
            self._following = None
        elif not self._world.wakes:
            self._leave()
        if self._following is None:
            self._begin()
        following = self._following
        if following is None:
            return False
        for _ in range(PARTS_MAX):
            self._turn(following, 1_000)
            self._receive(following, 1 << 30)
            if self._following is None or following.is_idle:
                break
            if following.server.loop.is_idle and not self._world.background.run():
                break
        if self._following is None or not following.is_idle:
            return False
        self._note_idle(following.server.engine)
        return True

    def after_power_loss(self) -> None:
        """Leave the connection: messages that it has read may be lost."""
        self._leave()
        self._pass += 1
        self._position, self._last = Position.earliest(), ""

    def _begin(self) -> None:
        bytes_max = self._random.choice((1, 300, 1 << 20))
        at = [PartitionPosition(self._place[1], self._position)]
        request = FetchRequest(TopicName.parse(self._place[0]), at, bytes_max, WAIT_S)
        self._since = self._world.history.now()
        engine = self._world.answering(self._random)
        if engine is not None:
            self._following = Following(self._servers.of(engine), request)

    def _turn(self, following: Following, turns: int) -> None:
        """Let the service run callbacks."""
        with self._world.at(following.server.engine):
            for _ in range(turns):
                if not following.server.loop.turn():
                    return

    def _receive(self, following: Following, bytes_max: int) -> None:
        try:
            parts = following.receive(bytes_max)
        except TMSError:  # the connection ends
            parts = []
            self._following = None
        for part in parts:
            self._take(part)
        if following.is_over:
            self._following = None

    def _cut(self, following: Following) -> None:
        self._following = None
        try:
            parts = following.cut(self._random.randint(0, following.unread_bytes))
        except TMSError:
            return
        for part in parts:
            self._take(part)

    def _leave(self) -> None:
        if self._following is not None:
            self._following.cut(0)
            self._following = None

    def _take(self, part: Fetched) -> None:
        messages = seen(part, self._position)
        self._position = part.next[self._place[1]]
        if messages:
            self._note(self._since, messages)

    def _note_idle(self, engine: Engine) -> None:
        """Note that the service waits: the reader has everything, and later messages come later."""
        self._since = self._world.history.now()
        at = [PartitionPosition(self._place[1], self._position)]
        fetched = engine.fetch_cached(TopicName.parse(self._place[0]), at, 1)
        if fetched is not None:
            held = held_name(self._world, fetched.held.get(self._place[1]))
            self._note(self._since, (), True, held)

    def _note(
        self,
        began: int,
        messages: tuple[tuple[str, str], ...],
        everything: bool = False,
        held_by: str = "",
    ) -> None:
        history = self._world.history
        history.add(
            Read(
                began,
                self._name,
                self._pass,
                self._place,
                True,
                self._last,
                messages,
                history.now(),
                everything,
                held_by,
            )
        )
        if messages:
            self._last = messages[-1][0]
