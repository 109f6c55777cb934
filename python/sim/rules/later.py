"""Rules of delayed messages, for every history.

A message that was acknowledged is in the log at the end, once, or it was cancelled; after a cancel
without an answer either may be so. The service's clock says when a message can be in the log: a
clock that goes back makes nothing late.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from itertools import accumulate

from sim.history import (
    Cancelled,
    Clock,
    Crashed,
    Deferred,
    Final,
    History,
    Listed,
    Read,
    Sent,
)
from sim.rules.findings import NEVER, Finding, Kind


class Times:
    """The times that the clocks showed."""

    def __init__(self, clocks: list[Clock]) -> None:
        self._at = [one.at for one in clocks]
        self._ms = [one.wall_ms for one in clocks]
        self._most = list(accumulate((one.wall_ms + one.ahead_ms for one in clocks), max))

    def most(self, until: int) -> int:
        """The latest time up to a moment."""
        number = bisect_right(self._at, until)
        return self._most[number - 1] if number else 0

    def least(self, since: int, until: int) -> int:
        """The earliest time between two moments."""
        first = max(0, bisect_right(self._at, since) - 1)
        return min(self._ms[first : bisect_right(self._at, until)], default=0)


class Later:
    """The outcomes of delayed messages, one by one."""

    def __init__(self, history: History) -> None:
        self.sent = [
            one for one in history.of(Sent) if one.due_ms is not None or one.delay_ms is not None
        ]
        self.deferred = history.of(Deferred)
        self.cancels = history.of(Cancelled)
        self.listed = history.of(Listed)
        self.times = Times([*history.of(Clock)])
        self.power = [one.at for one in history.of(Crashed) if one.power]
        self.asked = {value: one for one in self.sent for value in one.values}
        self.acknowledged: dict[str, Deferred] = {}  # by message, the first time
        self.id: dict[str, tuple[int, int]] = {}
        for one in self.deferred:
            for due_ms, sequence, value in one.messages:
                self.acknowledged.setdefault(value, one)
                self.id.setdefault(value, (due_ms, sequence))
        self.answers: dict[str, list[Cancelled]] = defaultdict(list)
        self.attempts: dict[str, int] = {}  # by message, the moment of the first cancel
        for cancel in self.cancels:
            self.attempts.setdefault(cancel.value, cancel.at)
            if cancel.done is not None:
                self.answers[cancel.value].append(cancel)
        self.final = {one.place: one.messages for one in history.of(Final)}
        self.there = {value for messages in self.final.values() for _, value in messages}
        self.seen: dict[str, tuple[str, int]] = {}  # by message, the first reader, and when
        if self.sent:
            self._look(history)

    def _look(self, history: History) -> None:
        for read in sorted(history.of(Read), key=lambda one: one.ended):
            for _, value in read.messages:
                if value in self.asked:
                    self.seen.setdefault(value, (read.reader, read.ended))
        for value in self.there & self.asked.keys():
            self.seen.setdefault(value, ("the last reader", NEVER - 1))

    def findings(self) -> Iterator[Finding]:
        """All violations."""
        if self.sent:
            yield from self._lost()
            yield from self._torn()
            yield from self._ids()
            yield from self._uncommitted()
            yield from self._order()
            yield from self._cancelled()
            yield from self._refused()
            for one in self.listed:
                yield from self._list(one)

    def power_lost(self, since: int, until: int = NEVER) -> bool:
        """True if there was a power loss in between."""
        return any(since < at < until for at in self.power)

    def _may_be_gone(self, value: str) -> bool:
        """True if the message was never acknowledged, or a power loss may have taken it."""
        one = self.acknowledged.get(value)
        return one is None or (not one.synced and self.power_lost(one.at))

    def _may_be_cancelled(self, value: str) -> bool:
        answers = self.answers.get(value)
        return any(one.done for one in answers) if answers else value in self.attempts

    def _lost(self) -> Iterator[Finding]:
        for value, one in self.acknowledged.items():
            excused = self._may_be_gone(value) or self._may_be_cancelled(value)
            if value not in self.there and not excused:
                yield Finding(Kind.LOST, f"{value} was to wait, acknowledged at {one.at}")

    def _torn(self) -> Iterator[Finding]:
        """Messages that were published together for one partition come together."""
        for one in self.sent:
            there = [value for value in one.values if value in self.there]
            for value in one.values if there else ():
                if value not in self.there and not self._may_be_cancelled(value):
                    yield Finding(Kind.TORN, f"{there[0]} is there, {value} is not")

    def _ids(self) -> Iterator[Finding]:
        owners: dict[tuple[str, int], str] = {}
        for one in self.deferred:
            for due_ms, sequence, value in one.messages:
                owner = owners.setdefault((one.place[0], sequence), value)
                if owner != value:
                    yield Finding(Kind.REUSED, f"{sequence} is {owner} and {value}")
                first = self.acknowledged[value]
                lost = not first.synced and self.power_lost(first.at, one.at)
                if self.id[value] != (due_ms, sequence) and not lost:
                    what = f"{value} waits as {self.id[value]} and as {(due_ms, sequence)}"
                    yield Finding(Kind.DUPLICATE, what)

    def _due_ms(self, value: str, until: int) -> int:
        """The earliest time at which the message can be due, as known at a moment."""
        sent = self.asked[value]
        if sent.delay_ms is None:
            return sent.due_ms or 0
        return self.times.least(sent.at, until) + sent.delay_ms

    def _uncommitted(self) -> Iterator[Finding]:
        for one in self.deferred:
            for due_ms, _, value in one.messages:
                if value in self.asked and due_ms < self._due_ms(value, one.at):
                    yield Finding(Kind.EARLY, f"{value} waits until {due_ms} only")
        for value, (reader, at) in self.seen.items():
            due_ms, now_ms = self._due_ms(value, at), self.times.most(at)
            if value in self.id and not self._may_be_gone(value):
                due_ms = self.id[value][0]
            if due_ms > now_ms:
                what = f"{value} is due at {due_ms}, {reader} saw it at {now_ms}"
                yield Finding(Kind.EARLY, what)

    def _order(self) -> Iterator[Finding]:
        """Messages come in the order of their due times, unless messages that are due later could
        come before others were stored."""
        for place in {one.place: None for one in self.sent}:
            latest, before = (0, 0), ""
            for _, value in self.final.get(place, ()):
                id = self.id.get(value)
                if id is None or self._may_be_gone(value):
                    continue
                stored = self.acknowledged[value].at
                if id < latest and self.times.most(stored) < latest[0]:
                    yield Finding(Kind.UNSTABLE, f"{value} came after {before}, it is due before")
                if id > latest:
                    latest, before = id, value

    def _cancelled(self) -> Iterator[Finding]:
        for value, answers in self.answers.items():
            for one in answers:
                excused = not one.synced and self.power_lost(one.ended)
                if one.done and value in self.seen and not excused:
                    what = f"{value} was cancelled at {one.ended}, {self.seen[value][0]} saw it"
                    yield Finding(Kind.CANCELLED, what)
                if one.done and any(other.done is False for other in answers) and not excused:
                    yield Finding(Kind.CANCELLED, f"{value} was cancelled, and was not")

    def _refused(self) -> Iterator[Finding]:
        for value, answers in self.answers.items():
            for one in answers:
                if one.done or self._may_be_gone(value):
                    continue
                if value not in self.there:
                    what = f"{value} could not be cancelled at {one.ended}, and never came"
                    yield Finding(Kind.CANCELLED, what)
                if self.times.most(one.ended) < self.id[value][0]:
                    what = f"{value} could not be cancelled at {one.ended}, before it was due"
                    yield Finding(Kind.CANCELLED, what)

    def _list(self, one: Listed) -> Iterator[Finding]:
        # An owner writes the count before it deletes the rows that it has moved: another process
        # may find these still.
        if one.waiting != len(one.values) and (one.owned or one.waiting > len(one.values)):
            what = f"{one.waiting} messages of {one.topic} waited at {one.at}, {len(one.values)} do"
            yield Finding(Kind.LISTED, what)
        listed, now_ms = set(one.values), self.times.most(one.ended)
        for value in one.values:
            if value not in self.asked:
                yield Finding(Kind.INVENTED, f"{value} waits in {one.topic}")
            if one.owned and self.seen.get(value, ("", NEVER))[1] < one.at:
                yield Finding(Kind.LISTED, f"{value} waits at {one.at}, it was seen before")
            for answer in self.answers.get(value, ()):
                excused = not answer.synced and self.power_lost(answer.ended, one.ended)
                if answer.done and answer.ended < one.at and not excused:
                    yield Finding(Kind.LISTED, f"{value} waits at {one.at}, it was cancelled")
        for value, ack in self.acknowledged.items():
            excused = not ack.synced and self.power_lost(ack.at, one.ended)
            known = ack.at < one.at and not excused and ack.place[0] == one.topic
            waits = self.id[value][0] > now_ms and self.attempts.get(value, NEVER) > one.ended
            if known and waits and value not in listed:
                yield Finding(Kind.LISTED, f"{value} does not wait at {one.at}")
