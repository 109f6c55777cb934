"""The history that a service answers: its own, and that of the other instances."""

from collections.abc import Callable, Collection
from contextlib import suppress

from tms.cluster.cluster import Cluster
from tms.engine.engine import Engine
from tms.errors import TMSError
from tms.model.history import HISTORY_S, Backlogs, History, added_up, together
from tms.model.topic import TopicName
from tms.server.history import GroupOfTopic, TopicLife
from tms.server.metrics import Metrics
from tms.server.sampling import Sampler
from tms.topics.owners import Peer


class Histories:
    """The history of all instances, as `HistoryApi`, and of this one. Thread-safe."""

    def __init__(self, engine: Engine, metrics: Metrics, connections: Collection[object]) -> None:
        self._engine = engine
        self.sampler = Sampler(engine, metrics, connections)
        self._rings = self.sampler.rings

    def service(self, last_s: int = HISTORY_S) -> History:
        """The last seconds of all instances."""
        own = self.service_here(last_s)
        return self._gathered(own, lambda peer: peer.own_history(last_s))

    def topic(self, name: TopicName, last_s: int = HISTORY_S) -> History:
        """The last seconds of a topic. Raises `TopicNotFound`."""
        own = self.topic_here(name, last_s)
        return self._gathered(own, lambda peer: peer.own_topic_history(name, last_s))

    def group(self, topic: TopicName, group: str, last_s: int = HISTORY_S) -> History:
        """The lag of a group. Raises `TopicNotFound`."""
        own = self.group_here(topic, group, last_s)
        return self._gathered(own, lambda peer: peer.own_group_history(topic, group, last_s))

    def backlogs(self) -> Backlogs:
        """The groups and queues that need attention, of the instances that answer."""
        found = [self.backlogs_here()]
        for peer in () if self._cluster is None else self._cluster.others():
            with suppress(TMSError):  # which the history and the loads say
                found.append(peer.own_backlogs())
        return together(found)

    def backlogs_here(self) -> Backlogs:
        """The groups and queues of this instance that need attention."""
        return self.sampler.backlogs

    def service_here(self, last_s: int) -> History:
        """The last seconds of this instance."""
        return self._rings.of_service(last_s, self._instance)

    def topic_here(self, name: TopicName, last_s: int) -> History:
        """The last seconds of a topic at this instance. Raises `TopicNotFound`."""
        return self._rings.of_topic(self._life_of(name), last_s, self._instance)

    def group_here(self, topic: TopicName, group: str, last_s: int) -> History:
        """The lag of a group that this instance has kept. Raises `TopicNotFound`."""
        key = GroupOfTopic(self._life_of(topic), group)
        return self._rings.of_group(key, last_s, self._instance)

    @property
    def _cluster(self) -> Cluster | None:
        return self._engine.cluster

    @property
    def _instance(self) -> str:
        return "" if self._cluster is None else self._cluster.id

    def _life_of(self, name: TopicName) -> TopicLife:
        return TopicLife(str(name), self._engine.topics.registry.find(name).uid)

    def _gathered(self, own: History, ask: Callable[[Peer], History]) -> History:
        """This history and those of the other instances."""
        others: list[History] = []
        silent: list[str] = []
        for peer in () if self._cluster is None else self._cluster.others():
            try:
                others.append(ask(peer))
            except TMSError:  # of an earlier release, too
                silent.append(peer.name)
        return added_up(own, others, silent)
