"""The events that an instance notes of its cluster: each change once, in order, within its
limit."""

from dataclasses import dataclass

from tests.clocks import ManualClock
from tms.cluster.events import EVENTS_MAX, ClusterEvents
from tms.cluster.membership import InstanceRecord, MembershipState, MembershipView


@dataclass
class _Cluster:
    view: MembershipView
    state: MembershipState = MembershipState.MEMBER
    taken_over: int = 0
    released: int = 0

    def sees(self, *ids: str, draining: str = "") -> None:
        self.view = MembershipView(
            self.view.number + 1,
            tuple(InstanceRecord(id, "http://x", "0", draining=id == draining) for id in ids),
        )


def _events() -> tuple[ClusterEvents, _Cluster]:
    return ClusterEvents("a", ManualClock()), _Cluster(MembershipView())


def test_every_change_is_noted_once() -> None:
    events, cluster = _events()
    cluster.sees("a", "b")
    cluster.taken_over = 1
    events.look(cluster, True, 3, 0.25)
    events.look(cluster, True, 3, 0.25)
    cluster.sees("a", "c", draining="c")
    cluster.state = MembershipState.SUSPENDED
    cluster.released = 2
    events.look(cluster, False, 0, 0.25)
    assert [(event.what, event.details) for event in events.newest()] == [
        ("an instance joined", "a"),
        ("an instance joined", "b"),
        ("membership", "member"),
        ("coordinates", "ready after 0.250 s"),
        ("keeps shards", "3, after 0.250 s"),
        ("took over", "1 partition"),
        ("an instance joined", "c"),
        ("an instance left", "b"),
        ("an instance drains", "c"),
        ("membership", "suspended"),
        ("coordinates no more", ""),
        ("keeps shards", "0, after 0.250 s"),
        ("released", "2 partitions"),
    ]


def test_only_the_newest_are_kept() -> None:
    events, cluster = _events()
    for _ in range(EVENTS_MAX + 5):
        cluster.taken_over += 1
        events.look(cluster, False, 0, 0)
    newest = events.newest()
    assert len(newest) == EVENTS_MAX
    assert {event.what for event in newest} == {"took over"}
