"""The rules that every history must satisfy. Plain Python: it knows nothing of the product.

The final content of the partitions is the truth against which all other events are checked:

    lost write            acknowledged or seen once, and gone at the end
    duplicate             one message twice, or one input processed twice
    aborted read          of a transaction that certainly did not commit, seen by a committed reader
    intermediate read     seen by a committed reader before its commit was requested
    torn transaction      one part there and another not: at the end, or for a reader who came
                          after one part had been seen
    unstable order        a reader passed a message, went back, or saw another id than others did
    id reuse              one id for two messages
    position regression   a group stands before a position where it certainly stood
    invented              a message or position that no client sent
    again                 delivered, settled or dead once more after it was settled
    shared lease          with two workers at a time
    lost update           stored only if a message was the newest, and that message was not
    risen                 there, or left with a reader, though a newer message of its key had
                          replaced or deleted it
    not erased            read, or stored, after the answer to an erasing that it was there for
    early                 a delayed message, seen before it was due by the service's clock
    wrong cancel          delivered all the same, or not delivered though it could not be cancelled
    wrong list            of waiting messages: one is missing, is there no more, or miscounted
    overtaken             a queue ordered by key handed out a message before an earlier one of its
                          key was settled
    strayed               a dead letter outside the partition of its key
    stopped early         a reader was told that it had everything, but lacked messages that were
                          acknowledged, or seen by others, before it asked

A power loss excuses messages that were acknowledged without a sync, or seen but not acknowledged;
compaction and erasing excuse messages that they are there to remove (`rules.gone`); nothing else
does.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise

from sim.history import (
    Acknowledged,
    Asked,
    Crashed,
    Done,
    Ended,
    Final,
    Found,
    History,
    Place,
    Read,
    Renewed,
    Sent,
    metadata_of,
)
from sim.rules.classic import Classic
from sim.rules.cut import Cut
from sim.rules.findings import NEVER, Finding, Kind
from sim.rules.gone import Gone
from sim.rules.later import Later
from sim.rules.queues import Queues


class _Tx:
    """The history's facts about a transaction."""

    def __init__(self) -> None:
        self.values: list[str] = []
        self.asked = NEVER
        self.ended = NEVER
        self.committed: bool | None = None
        self.synced = True
        self.seen = NEVER  # when a committed reader had seen one of its messages


class Checker:
    """The history of one run, by message and by transaction."""

    def __init__(self, history: History) -> None:
        self.reads = history.of(Read)
        self.acknowledged = history.of(Acknowledged)
        self.found = history.of(Found)
        self.asked = history.of(Asked)
        self.done = history.of(Done)
        self.renewed = history.of(Renewed)
        self.queues = Queues(history)
        self.gone = Gone(history)
        self.cut = Cut(history)
        self.later = Later(history)
        self.classic = Classic(history)
        # Copies stand here.
        self.dead = {place for one in self.queues.drained for place in one.dead}
        self.power = [one.at for one in history.of(Crashed) if one.power]
        self.place: dict[str, Place] = {}
        self.transaction: dict[str, str] = {}
        self.source: dict[str, str] = {}
        self.rests_on: dict[str, str] = {}
        self.transactions: dict[str, _Tx] = defaultdict(_Tx)
        for sent in history.of(Sent):
            for number, value in enumerate(sent.values):
                self.place[value] = sent.place
                if sent.rests_on is not None:
                    self.rests_on[value] = sent.rests_on
                if sent.sources:
                    self.source[value] = sent.sources[number]
                if sent.transaction:
                    self.transaction[value] = sent.transaction
                    self.transactions[sent.transaction].values.append(value)
        for asked in self.asked:
            self.transactions[asked.transaction].asked = asked.at
        for ended in history.of(Ended):
            one = self.transactions[ended.transaction]
            one.ended, one.committed, one.synced = ended.at, ended.committed, ended.synced
        self.final = {one.place: one.messages for one in history.of(Final)}
        self.index: dict[str, int] = {}  # index of a message in its partition at the end
        self.id: dict[str, str] = {}
        for place, messages in self.final.items():
            for number, (id, value) in enumerate(messages if place not in self.dead else ()):
                self.index.setdefault(value, number)
                self.id.setdefault(value, id)

    def findings(self) -> Iterator[Finding]:
        """All violations."""
        for rule in RULES:
            yield from rule(self)

    def missing(self, value: str) -> bool:
        """True if a message that must be there at the end, if it was ever stored, is missing."""
        excused = self.gone.excused(value) or self.cut.excused(value)
        return value not in self.index and not excused

    def power_lost(self, since: int, until: int = NEVER) -> bool:
        """True if there was a power loss in between."""
        return any(since < at < until for at in self.power)


def check(history: History) -> list[Finding]:
    """The violations in a history; empty if it is correct."""
    return list(Checker(history).findings())


def _lost(run: Checker) -> Iterator[Finding]:
    for ack in run.acknowledged:
        excused = not ack.synced and run.power_lost(ack.at)
        for _, value in ack.messages:
            if not excused and run.missing(value):
                yield Finding(Kind.LOST, f"{value} was acknowledged at {ack.at}")
    for name, one in run.transactions.items():
        excused = not one.synced and run.power_lost(one.ended)
        if one.committed and not excused:
            for value in one.values:
                if run.missing(value):
                    yield Finding(Kind.LOST, f"{value} of {name}, committed at {one.ended}")
    for read in run.reads:
        excused = not read.committed or run.power_lost(read.at)
        for _, value in read.messages:
            if not excused and run.missing(value):
                yield Finding(Kind.LOST, f"{value} was seen by {read.reader} at {read.at}")


def _processing(run: Checker) -> Iterator[Finding]:
    """A group processes every input once, up to its position."""
    made: dict[str, Counter[str]] = defaultdict(Counter)  # topic → source
    for place, messages in run.final.items():
        made[place[0]].update(run.source[value] for _, value in messages if value in run.source)
    for topic, sources in made.items():
        for source, times in sources.items():
            if times > 1:
                yield Finding(Kind.DUPLICATE, f"{source} was processed {times} times into {topic}")
    for done in run.done:
        for id, value in run.final.get(done.place, ()):
            if id <= done.id and not made[done.output][value]:
                yield Finding(Kind.LOST, f"{done.group} passed {value} without processing it")


def _duplicates(run: Checker) -> Iterator[Finding]:
    for place, messages in run.final.items():
        for value, times in Counter(value for _, value in messages).items():
            if times > 1:
                yield Finding(Kind.DUPLICATE, f"{value} is {times} times in {place}")


def _aborted(run: Checker) -> Iterator[Finding]:
    for who, value, at in _sightings(run):
        one = run.transactions.get(run.transaction.get(value, ""))
        excused = run.power_lost(at)
        if one is not None and one.committed is False and not excused:
            yield Finding(Kind.ABORTED, f"{value} was seen by {who} at {at}")


def _intermediate(run: Checker) -> Iterator[Finding]:
    for who, value, at in _sightings(run):
        one = run.transactions.get(run.transaction.get(value, ""))
        if one is not None and at < one.asked and one.committed is not False:
            yield Finding(Kind.INTERMEDIATE, f"{value} was seen by {who} at {at}")


def _sightings(run: Checker) -> Iterator[tuple[str, str, int]]:
    """Messages as committed readers saw them: reader, value, when the read had ended."""
    for read in run.reads:
        if read.committed:
            for _, value in read.messages:
                yield read.reader, value, read.ended
    for messages in run.final.values():
        for _, value in messages:
            yield "the last reader", value, NEVER - 1


def _torn(run: Checker) -> Iterator[Finding]:
    for name, one in run.transactions.items():
        there = [value for value in one.values if value in run.index]
        missing = [value for value in one.values if there and run.missing(value)]
        if missing:
            yield Finding(Kind.TORN, f"{there[0]} of {name} is there, {missing[0]} is not")
    for read in run.reads:
        if read.committed:
            for _, value in read.messages:
                one = run.transactions.get(run.transaction.get(value, "")) or _Tx()
                one.seen = min(one.seen, read.ended)
    for read in run.reads:
        if read.committed and read.everything:
            yield from _withheld(run, read)


def _withheld(run: Checker, read: Read) -> Iterator[Finding]:
    """A reader that saw everything lacks a message of a transaction of which another message had
    been seen before."""
    upto = read.messages[-1][0] if read.messages else read.after
    for id, value in reversed(run.final.get(read.place, ())):
        if id <= upto:
            break
        name = run.transaction.get(value, "")
        one = run.transactions.get(name)
        if one is None or one.seen > read.at or read.held_by not in ("", name):
            continue
        if not _matches(read, value):
            continue
        if not run.power_lost(one.seen, read.at if one.synced else NEVER):
            yield Finding(Kind.TORN, f"{value} of {name} was not shown to {read.reader}")


def _order(run: Checker) -> Iterator[Finding]:
    passes: dict[tuple[str, int, Place], list[Read]] = defaultdict(list)
    for read in run.reads:
        passes[read.reader, read.pass_, read.place].append(read)
    for (reader, _, place), reads in passes.items():
        seen = [(id, value) for read in reads for id, value in read.messages]
        for (before, _), (id, value) in pairwise(seen):
            if id <= before:
                yield Finding(Kind.UNSTABLE, f"{reader} saw {value} at {id} after {before}")
        for read in reads:
            for id, value in read.messages:
                repeated = not read.committed and value in run.transaction
                other = run.id.get(value, id) != id
                if other and not repeated and not run.power_lost(read.at):
                    yield Finding(Kind.UNSTABLE, f"{value} had the id {id}, then {run.id[value]}")
        content = [one for one in run.final.get(place, ()) if _matches(reads[0], one[1])]
        numbers = {value: number for number, (_, value) in reversed([*enumerate(content)])}
        shown = [numbers[value] for id, value in seen if run.id.get(value) == id]
        start = sum(1 for id, _ in content if id <= reads[0].after)
        for before_number, number in pairwise([start - 1, *shown]):
            for id, passed in content[before_number + 1 : number]:
                if not _took_its_id(run, reads, id, passed):
                    yield Finding(Kind.UNSTABLE, f"{reader} passed {passed} in {place}")
                    break


def _took_its_id(run: Checker, reads: list[Read], id: str, passed: str) -> bool:
    """True if a message has an id that a reader had seen of another one, or behind which it stood,
    before a power loss took that."""
    at = next((one.at for one in reads if one.messages and one.messages[-1][0] >= id), NEVER)
    return run.power_lost(at, run.cut.known(passed))


def _matches(read: Read, value: str) -> bool:
    """True if a message passes the filter of a read."""
    return not read.key or value.startswith(f"{read.key}=")


def _stopped(run: Checker) -> Iterator[Finding]:
    """A reader that was told that it has everything lacks a message that was certainly there
    before."""
    since: dict[str, int] = {}
    for ack in run.acknowledged:
        for _, value in ack.messages:
            since[value] = min(since.get(value, NEVER), ack.at)
    for one in run.transactions.values():
        if one.committed:
            for value in one.values:
                since[value] = min(since.get(value, NEVER), one.ended)
    for read in run.reads:
        if read.committed:
            for _, value in read.messages:
                since[value] = min(since.get(value, NEVER), read.ended)
    for read in run.reads:
        if not read.committed or not read.everything or read.held_by:
            continue
        upto = read.messages[-1][0] if read.messages else read.after
        for id, value in reversed(run.final.get(read.place, ())):
            if id <= upto:
                break
            known = since.get(value, NEVER)
            if _matches(read, value) and known < read.at and not run.power_lost(known):
                what = f"{read.reader} did not get {value} of {read.place} at {read.at}"
                yield Finding(Kind.STOPPED, what)


def _ids(run: Checker) -> Iterator[Finding]:
    owners: dict[tuple[Place, str], tuple[str, int]] = {}
    sightings = [(one.place, one.messages, one.at) for one in run.acknowledged]
    sightings += [(one.place, one.messages, one.at) for one in run.reads]
    sightings += [(place, messages, NEVER) for place, messages in run.final.items()]
    for place, messages, at in sorted(sightings, key=lambda one: one[2]):
        for id, value in messages:
            owner, since = owners.setdefault((place, id), (value, at))
            if owner != value:
                lost = run.id.get(owner) != id and run.power_lost(since, at)
                if not lost:
                    yield Finding(Kind.REUSED, f"{id} of {place} is {owner} and {value}")
                owners[place, id] = (value, at)


def _positions(run: Checker) -> Iterator[Finding]:
    moves: dict[tuple[str, Place], list[tuple[str, _Tx]]] = defaultdict(list)
    for asked in run.asked:
        for group, place, id in asked.moves:
            moves[group, place].append((id, run.transactions[asked.transaction]))
    for found in run.found:
        known = moves[found.group, found.place]
        possible = {
            id
            for id, one in known
            if one.asked < found.ended and (one.committed is not False or run.power_lost(found.at))
        }
        if found.id and found.id not in possible:
            yield Finding(Kind.INVENTED, f"{found.group} stands at {found.id}")
        for id, one in known:
            sure = one.committed and one.ended < found.at
            excused = not one.synced and run.power_lost(one.ended, found.ended)
            if sure and not excused and found.id < id:
                yield Finding(Kind.REGRESSION, f"{found.group} at {found.id}, it was at {id}")


def _metadata(run: Checker) -> Iterator[Finding]:
    """Metadata are those that were committed with the position."""
    seen = [(one.group, one.id, one.metadata) for one in run.found]
    seen += [(one.group, one.id, one.metadata) for one in run.done]
    for group, id, metadata in seen:
        if id and metadata != metadata_of(id):
            yield Finding(Kind.INVENTED, f"{group} at {id} has the metadata {metadata!r}")


def _invented(run: Checker) -> Iterator[Finding]:
    sightings = [(one.place, one.messages) for one in run.reads]
    sightings += list(run.final.items())
    for place, messages in sightings:
        for _, value in messages:
            if run.place.get(value) != place and not (value in run.place and place in run.dead):
                yield Finding(Kind.INVENTED, f"{value} in {place}")


def _updates(run: Checker) -> Iterator[Finding]:
    for place, messages in run.final.items():
        newest = ""
        for _, value in messages:
            expected = run.rests_on.get(value)
            if expected is not None:
                if expected != newest:
                    what = f"{value} in {place} rests on {expected!r}, {newest!r} was the newest"
                    yield Finding(Kind.UPDATE, what)
                newest = value


def _renewals(run: Checker) -> Iterator[Finding]:
    for one in run.renewed:
        if one.stored and one.readable:
            yield Finding(Kind.UPDATE, f"stored at {one.at} in {one.place}, beside {one.readable}")
        if not one.stored and not one.readable:
            yield Finding(Kind.UPDATE, f"refused at {one.at} in {one.place}, beside nothing")


def _queues(run: Checker) -> Iterator[Finding]:
    return run.queues.findings()


def _gone(run: Checker) -> Iterator[Finding]:
    return run.gone.findings()


def _cut(run: Checker) -> Iterator[Finding]:
    return run.cut.findings()


def _later(run: Checker) -> Iterator[Finding]:
    return run.later.findings()


def _classic(run: Checker) -> Iterator[Finding]:
    return run.classic.findings()


RULES: tuple[Callable[[Checker], Iterator[Finding]], ...] = (
    _lost,
    _processing,
    _duplicates,
    _aborted,
    _intermediate,
    _torn,
    _order,
    _stopped,
    _ids,
    _positions,
    _metadata,
    _invented,
    _updates,
    _renewals,
    _queues,
    _gone,
    _cut,
    _later,
    _classic,
)
