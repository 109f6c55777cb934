"""The rules of groups of Kafka's classic protocol: silent about a right history, and each finds a
wrong one."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from sim.history import Assigned, Event, Generation, History, Moved, Positioned, Present
from sim.rules.checker import check
from sim.rules.findings import Kind


@dataclass
class Group:
    """Events of a group, one moment after another."""

    events: list[Event] = field(default_factory=list)
    at: int = 0

    def now(self) -> int:
        self.at += 1
        return self.at

    def join(self, member: str, generation: int, instance: str | None = None, life: int = 1) -> Any:
        self.events.append(Generation(self.now(), "g", member, generation, instance, life))
        return self

    def assign(
        self,
        member: str,
        generation: int,
        *partitions: int,
        plan: int = 1,
        instance: str | None = None,
    ) -> Any:
        at, names = self.now(), ("g", member, generation, instance, 1)
        self.events.append(Assigned(at, *names, plan, partitions))
        return self

    def move(
        self,
        number: int,
        member: str,
        generation: int,
        done: bool | None = True,
        instance: str | None = None,
        life: int = 1,
    ) -> Any:
        names = "g", 0, number, member, generation, instance, life
        self.events.append(Moved(self.now(), *names, self.now(), done))
        return self

    def look(self, number: int, metadata: str = "") -> Any:
        metadata = metadata or (f"{number}" if number else "")
        self.events.append(Positioned(self.now(), "g", 0, number, metadata, self.now()))
        return self

    def told(self, kind: str, who: str, shard: int = 0) -> Any:
        self.events.append(Present(self.now(), "g", shard, kind, who, self.now()))
        return self

    @property
    def kinds(self) -> set[Kind]:
        return {one.kind for one in check(History(self.events))}


def right() -> Group:
    """Two members, of which one is replaced; then a generation of one."""
    group = Group().join("a", 1).join("x1", 1, "x").assign("a", 1, 0)
    group.assign("x1", 1, 1, 2, instance="x").move(1, "a", 1).look(1)
    group.join("x2", 1, "x").assign("x2", 1, 1, 2, instance="x")
    group.move(2, "x2", 1, instance="x").told("classic", "a 1").look(2)
    group.join("a", 2).assign("a", 2, 0, 1, 2, plan=2).move(3, "a", 2).move(4, "x2", 1, False, "x")
    return group.look(3).told("classic", "a 2").told("tms", "m").told("tms", "m")


def test_nothing_is_found_in_a_right_history() -> None:
    assert right().kinds == set()


def test_what_the_rules_read_survives_lines_of_json() -> None:
    history = History(right().events)
    assert History.decode(history.encode()).events == history.events


@pytest.mark.parametrize(
    ("events", "kind"),
    [
        (Group().assign("a", 1, 0).assign("b", 1, 0), Kind.OWNERS),
        (Group().assign("a", 1, 0).assign("b", 1, 1, plan=2), Kind.OWNERS),
        (Group().assign("x1", 1, 0, instance="x").assign("y1", 1, 0, instance="y"), Kind.OWNERS),
        (Group().join("a", 1).join("b", 2).move(1, "a", 1), Kind.FENCED),
        (Group().join("a", 1).join("b", 2).move(1, "a", 1, None).look(1), Kind.FENCED),
        (Group().join("x1", 1, "x").join("x2", 1, "x").move(1, "x1", 1, True, "x"), Kind.FENCED),
        (
            Group().join("a", 1).join("b", 1, life=2).move(1, "b", 1, life=2).look(0),
            Kind.REGRESSION,
        ),
        (
            Group().join("a", 1).join("b", 3, life=2).move(1, "b", 3, life=2).move(2, "a", 1),
            Kind.FENCED,
        ),
        (Group().join("a", 1).move(1, "a", 1, False).look(1), Kind.INVENTED),
        (Group().join("a", 1).move(1, "a", 1).look(1, metadata="2"), Kind.INVENTED),
        (Group().look(7), Kind.INVENTED),
        (Group().join("a", 1).move(1, "a", 1).move(2, "a", 1).look(1), Kind.REGRESSION),
        (Group().join("a", 1).move(1, "a", 1).look(0), Kind.REGRESSION),
        (Group().told("classic", "a 1").told("tms", "m").told("classic", "a 1"), Kind.KINDS),
        (Group().told("tms", "m").told("classic", "a 1").told("tms", "m"), Kind.KINDS),
    ],
)
def test_a_wrong_history_is_found(events: Group, kind: Kind) -> None:
    assert kind in events.kinds


@pytest.mark.parametrize(
    "events",
    [
        Group().join("a", 1).move(1, "a", 1, None).look(0),
        Group().join("a", 1).move(1, "a", 1, None).look(1),
        Group().join("a", 1).move(1, "a", 1).move(2, "a", 1, None).look(1),
        Group().join("a", 1).join("b", 2, life=2).move(1, "a", 1),  # that shard was replaced before
        Group().join("a", 1).join("b", 2).join("a", 1, life=2).move(1, "a", 1, life=2),
        Group().told("classic", "a 1").told("tms", "m", shard=1).told("classic", "a 1"),
        Group().told("classic", "a 1").told("tms", "m").told("classic", "a 2"),
    ],
)
def test_nothing_is_found_where_nobody_can_know(events: Group) -> None:
    assert events.kinds == set()
