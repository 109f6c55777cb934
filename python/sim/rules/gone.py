"""Messages that may be missing though they were there, and messages that must be gone.

    compaction   a message goes once there is a newer one of its key; a tombstone also once there
                 was a pass long enough after one that came after it
    erasing      messages that were certainly there at the request go, with their bytes;
                 messages that were published after the answer stay

A message that replaced or deleted another one may be gone as well: but then no older message of its
key is there. A reader that reads from the beginning to the end in less than the retention of
tombstones ends with no message of a key that is older than the newest when it began.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator

from sim.history import (
    Acknowledged,
    Clock,
    Compacted,
    Compacting,
    Crashed,
    Ended,
    Erased,
    Final,
    History,
    Place,
    Read,
    Seen,
    Sent,
    Stored,
    is_tombstone,
)
from sim.rules.findings import NEVER, Finding, Kind

Copy = tuple[Place, str, str]  # a message: its place, its id, its value
_Key = tuple[Place, str]


def _key(place: Place, value: str) -> _Key | None:
    key, has_key, _ = value.partition("=")
    return (place, key) if has_key else None


class Gone:
    """The removed messages, one by one."""

    def __init__(self, history: History) -> None:
        self._reads = history.of(Read)
        self._final = {one.place: one.messages for one in history.of(Final)}
        self._compacted = {one.place: one for one in history.of(Compacted)}
        self._erased = history.of(Erased)
        self._stored = {value for one in history.of(Stored) for value in one.values}
        self._power = [one.at for one in history.of(Crashed) if one.power]
        self._sent: dict[str, tuple[Place, int]] = {}
        for sent in history.of(Sent):
            self._sent.update(dict.fromkeys(sent.values, (sent.place, sent.at)))
        self._acknowledged: dict[str, int] = {}  # when a message was acknowledged
        self._known: dict[Copy, int] = {}  # when a copy was first known to be there
        self._shown: set[Copy] = set()  # visible to committed readers
        self._learn(history)
        self._newest: dict[_Key, list[tuple[str, int, str]]] = defaultdict(list)
        self._ids: dict[str, set[str]] = defaultdict(set)
        for (place, id, value), at in self._known.items():
            self._ids[value].add(id)
            key = _key(place, value)
            if key is not None and place in self._compacted and (place, id, value) in self._shown:
                self._newest[key].append((id, at, value))
        for messages in self._newest.values():
            messages.sort()
        self._transactional = {
            value for sent in history.of(Sent) if sent.transaction for value in sent.values
        }
        aborted = {one.transaction for one in history.of(Ended) if not one.committed}
        self._unseen = [
            value
            for sent in history.of(Sent)
            if sent.transaction not in aborted
            for value in sent.values
            if value not in self._ids
        ]
        self._ahead_ms = max((clock.ahead_ms for clock in history.of(Clock)), default=0)
        self._ticks, wall_ms = [(0, 0)], None
        for clock in history.of(Clock):
            ahead_ms = 0 if wall_ms is None else max(0, clock.wall_ms - wall_ms)
            self._ticks.append((clock.at, self._ticks[-1][1] + ahead_ms))
            wall_ms = clock.wall_ms
        self._passes: dict[Place, list[int]] = defaultdict(list)
        for one in history.of(Compacting):
            self._passes[one.place].append(one.at)

    def _learn(self, history: History) -> None:
        known = self._known
        for ack in history.of(Acknowledged):
            for id, value in ack.messages:
                self._acknowledged.setdefault(value, ack.at)
                copy = ack.place, id, value
                known[copy] = min(known.get(copy, NEVER), ack.at)
                self._shown.add(copy)
        committed = {one.transaction: one.at for one in history.of(Ended) if one.committed}
        for sent in history.of(Sent):
            if sent.transaction in committed:
                since = committed[sent.transaction]
                self._acknowledged.update(dict.fromkeys(sent.values, since))
        for read in self._reads:
            for id, value in read.messages:
                copy = read.place, id, value
                known[copy] = min(known.get(copy, NEVER), read.ended)
                if read.committed:
                    self._shown.add(copy)
        for place, messages in self._final.items():
            for id, value in messages:
                known.setdefault((place, id, value), NEVER)
                self._shown.add((place, id, value))

    # -- what may be missing -------------------------------------------------------------------

    def excused(self, value: str) -> bool:
        """True if a message that was there need not be there at the end."""
        return self.erased(value) or self._replaced(value) or self._expired(value)

    def erased(self, value: str, until: int = NEVER) -> bool:
        """True if a message may have been erased before this moment."""
        place, sent = self._sent.get(value, (("", 0), NEVER))
        key = _key(place, value)
        return any(
            place in one.places
            and one.at < until
            and (one.id in self._ids[value] if one.id else key == (place, one.key))
            and sent < one.ended
            for one in self._erased
        )

    def _replaced(self, value: str) -> bool:
        """True if a compacted topic has, or had, a newer message of its key."""
        place, sent = self._sent.get(value, (("", 0), NEVER))
        key = _key(place, value)
        if place not in self._compacted or key is None:
            return False
        last = max(self._ids[value], default="")
        if any(id > last and at > sent for id, at, _ in self._newest[key]):
            return True
        return any(  # no reader ever saw it, and it may be gone by now
            self._sent[other][1] > sent
            and _key(self._sent[other][0], other) == key
            and (is_tombstone(other) or self.erased(other))
            for other in self._unseen
        )

    def _expired(self, value: str) -> bool:
        """True if a tombstone had been kept for its retention."""
        place, sent = self._sent.get(value, (("", 0), NEVER))
        topic = self._compacted.get(place)
        if topic is None or topic.tombstone_retention_ms is None or not is_tombstone(value):
            return False
        passes = [at for at in self._passes[place] if at > sent]
        kept_ms = self._clock_ms(passes[-1]) - self._clock_ms(passes[0]) if passes else -1
        return kept_ms + self._ahead_ms >= topic.tombstone_retention_ms

    def _clock_ms(self, at: int) -> int:
        """The time at a moment on a clock that never goes back."""
        return self._ticks[bisect_right(self._ticks, (at, NEVER)) - 1][1]

    # -- what must not be there ----------------------------------------------------------------

    def findings(self) -> Iterator[Finding]:
        """All violations."""
        yield from self._risen_at_the_end()
        yield from self._risen_for_readers()
        for erased in self._erased:
            if erased.done:
                yield from self._left_of(erased)

    def _risen_at_the_end(self) -> Iterator[Finding]:
        for key, messages in self._newest.items():
            there = {value for _, value in self._final.get(key[0], ())}
            values = [value for _, _, value in messages if value in there or not self.erased(value)]
            risen = [value for value in values if value in there]
            if risen and risen[-1] != values[-1] and is_tombstone(values[-1]):
                yield Finding(Kind.RISEN, f"{risen[-1]} is there, {values[-1]} deleted it")

    def _risen_for_readers(self) -> Iterator[Finding]:
        begun: dict[tuple[str, int], Read] = {}
        last: dict[tuple[str, int], dict[_Key, Seen]] = {}
        for read in self._reads:
            topic, reader = self._compacted.get(read.place), (read.reader, read.pass_)
            if topic is None or not read.committed:
                continue
            if not read.after:
                begun[reader], last[reader] = read, {}
            if reader not in begun:
                continue
            for id, value in read.messages:
                if (key := _key(read.place, value)) is not None:
                    last[reader][key] = id, value
            first, retention_ms = begun[reader], topic.tombstone_retention_ms
            took_ms = self._clock_ms(read.ended) - self._clock_ms(first.at) + self._ahead_ms
            in_time = retention_ms is None or took_ms < retention_ms
            if not in_time or read.held_by or not read.everything:
                continue
            for key, (id, value) in last[reader].items():
                newer = self._newest_at(key, first.at, read.ended)
                if newer is not None and id < newer[0]:
                    yield Finding(Kind.RISEN, f"{read.reader} kept {value}, not {newer[1]}")

    def _newest_at(self, key: _Key, at: int, until: int) -> tuple[str, str] | None:
        """The newest message of a key that was known to be there."""
        if any(at_power > at for at_power in self._power if at_power < until):
            return None
        for id, since, value in reversed(self._newest[key]):
            if since < at and not self.erased(value, until):
                return id, value
        return None

    def _left_of(self, erased: Erased) -> Iterator[Finding]:
        """Messages that were there when the erasing began, and still are after its answer."""
        what = erased.key or erased.id
        gone = {copy for copy, since in self._known.items() if since < erased.at}
        gone = {copy for copy in gone if self._wanted(erased, copy)}
        values = {value for _, _, value in gone if self._certain(value, erased.at)}
        values |= {
            value
            for value, since in self._acknowledged.items()
            if since < erased.at and self._wanted(erased, (self._sent[value][0], "", value))
        }
        for read in self._reads:
            if read.at > erased.ended and read.place in erased.places:
                for id, value in read.messages:
                    if value in values or (read.place, id, value) in gone:
                        who = f"{read.reader} saw {value} at {read.at}"
                        yield Finding(Kind.UNERASED, f"{who}, erased with {what} at {erased.ended}")
        for place in erased.places:
            for id, value in self._final.get(place, ()):
                if value in values or (place, id, value) in gone:
                    yield Finding(Kind.UNERASED, f"{value} is there, erased with {what}")
        if erased.id:  # blocks that a failed commit attempt stored and rolled back have other ids
            values -= self._transactional
        for value in sorted(values & self._stored):
            yield Finding(Kind.UNERASED, f"the bytes of {value} are stored, erased with {what}")

    def _wanted(self, erased: Erased, copy: Copy) -> bool:
        place, id, value = copy
        if place not in erased.places:
            return False
        return id == erased.id if erased.id else _key(place, value) == (place, erased.key)

    def _certain(self, value: str, at: int) -> bool:
        """True if no producer publishes again a message that was known to be there."""
        if self._acknowledged.get(value, NEVER) < at:
            return True
        _, sent = self._sent.get(value, (("", 0), NEVER))
        return not any(power > sent for power in self._power)
