"""Rules of queues, for every history.

A message of a queue is settled once: by an ack, by a commit that includes it, or by going to the
dead letters. A request without an answer may have taken effect or not.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator

from sim.history import Crashed, Drained, Final, Handled, History, Taken
from sim.rules.findings import NEVER, Finding, Kind
from tms.model.queue import deliveries_of, released

SETTLING = ("ack", "made", "reject")
RETURNING = ("nack", "release", "extend")
Message = tuple[str, str]  # queue, value


class Queues:
    """The operations of workers, message by message."""

    def __init__(self, history: History) -> None:
        self.taken = history.of(Taken)
        self.handled = history.of(Handled)
        self.drained = history.of(Drained)
        self.crashes = [one.at for one in history.of(Crashed)]
        self.final = {one.place: [value for _, value in one.messages] for one in history.of(Final)}
        self.settled: dict[Message, list[Handled]] = defaultdict(list)  # certainly
        self.asked: dict[Message, list[Handled]] = defaultdict(list)
        for one in self.handled:
            for job in one.asked:
                self.asked[one.queue, job.value].append(one)
            for value in one.done:
                if one.how in SETTLING:
                    self.settled[one.queue, value].append(one)

    def findings(self) -> Iterator[Finding]:
        """All violations."""
        yield from self._settled_once()
        yield from self._not_after_it_was_settled()
        yield from self._one_worker_at_a_time()
        yield from self._counted()
        yield from self._released()
        for drained in self.drained:
            yield from self._at_the_end(drained)
            yield from self._at_home(drained)
            if drained.by_key:
                yield from self._one_after_another(drained)

    def _dead(self, drained: Drained) -> list[str]:
        return [value for place in drained.dead for value in self.final.get(place, ())]

    def _at_home(self, drained: Drained) -> Iterator[Finding]:
        """The dead letters of a key are in its partition."""
        homes = dict(drained.homes)
        for place in drained.dead:
            for value in self.final.get(place, ()):
                key, has_key, _ = value.partition("=")
                if has_key and homes.get(key, place) != place:
                    yield Finding(Kind.STRAYED, f"{value} is in {place}, not in {homes[key]}")

    def _settled_once(self) -> Iterator[Finding]:
        for (queue, value), times in self.settled.items():
            tokens = {
                (one.how, job.deliveries)
                for one in times
                for job in one.asked
                if job.value == value
            }
            if len(tokens) > 1:
                yield Finding(Kind.AGAIN, f"{value} of {queue} was settled by {sorted(tokens)}")

    def _not_after_it_was_settled(self) -> Iterator[Finding]:
        sure = {message: min(one.ended for one in times) for message, times in self.settled.items()}
        for taken in self.taken:
            for job in taken.jobs:
                if taken.at > sure.get((taken.queue, job.value), NEVER):
                    yield Finding(Kind.AGAIN, f"{taken.worker} got {job.value}, which was settled")

    def _one_worker_at_a_time(self) -> Iterator[Finding]:
        last: dict[Message, Taken] = {}
        for taken in self.taken:
            for job in taken.jobs:
                message = taken.queue, job.value
                before = last.get(message)
                last[message] = taken
                if before is None or before.era != taken.era:
                    continue
                given_back = any(
                    before.at < one.at < taken.ended and one.how in RETURNING
                    for one in self.asked[message]
                )
                held = taken.clock_ms < before.clock_ms + before.lease_ms
                if held and not given_back:
                    who = f"{before.worker} and {taken.worker}"
                    yield Finding(Kind.SHARED, f"{job.value} was with {who} at a time")

    def _counted(self) -> Iterator[Finding]:
        """Each delivery has a number of its own, greater than those before."""
        last: dict[Message, int] = {}
        for taken in self.taken:
            for job in taken.jobs:
                message = taken.queue, job.value
                if job.deliveries <= last.get(message, 0):
                    what = f"{job.value} was delivered as {job.deliveries} after {last[message]}"
                    yield Finding(Kind.REGRESSION, what)
                last[message] = max(job.deliveries, last.get(message, 0))

    def _released(self) -> Iterator[Finding]:
        """A released delivery does not count: the next one has its number again."""
        deliveries: dict[Message, list[tuple[int, int]]] = defaultdict(list)
        for taken in self.taken:
            for job in taken.jobs:
                deliveries[taken.queue, job.value].append((taken.at, job.deliveries))
        for one in self.handled:
            for job in one.asked if one.how == "release" else ():
                for at, number in deliveries[one.queue, job.value] if job.value in one.done else ():
                    if at > one.ended and number <= released(job.deliveries):
                        count = deliveries_of(number)
                        what = f"{job.value} was released and then delivered as {count}"
                        yield Finding(Kind.REGRESSION, what)

    def _at_the_end(self, drained: Drained) -> Iterator[Finding]:
        seen = {
            job.value for taken in self.taken if taken.queue == drained.queue for job in taken.jobs
        }
        dead = Counter(self._dead(drained))
        for value in self.final.get(drained.place, ()):
            message = drained.queue, value
            if value not in seen and not dead[value]:
                yield Finding(Kind.LOST, f"{value} was never given to a worker")
            if dead[value] > 1:
                yield Finding(Kind.DUPLICATE, f"{value} is {dead[value]} times a dead letter")
            hows = {one.how for one in self.settled[message]}
            if dead[value] and hows & {"ack", "made"}:
                yield Finding(Kind.AGAIN, f"{value} is a dead letter and was settled: {hows}")
            if "reject" in hows and not dead[value]:
                yield Finding(Kind.LOST, f"{value} was rejected and is no dead letter")
            asked = {one.how for one in self.asked[message]} & {*SETTLING}
            if value in seen and not asked and not dead[value]:
                yield Finding(Kind.LOST, f"{value} is gone from {drained.queue}, never settled")

    def _one_after_another(self, drained: Drained) -> Iterator[Finding]:
        """A message is handed out only when the earlier messages of its key may be settled."""
        dead = {*self._dead(drained)}
        earlier: dict[str, list[str]] = defaultdict(list)  # by message, the earlier ones of its key
        seen: dict[str, list[str]] = defaultdict(list)
        for value in self.final.get(drained.place, ()):
            key, has_key, _ = value.partition("=")
            if has_key:
                earlier[value] = [*seen[key]]
                seen[key].append(value)
        asked = {
            value: min(
                (one.at for one in self.asked[drained.queue, value] if one.how in SETTLING),
                default=NEVER,
            )
            for values in seen.values()
            for value in values
        }
        for taken in self.taken:
            for job in taken.jobs if taken.queue == drained.queue else ():
                for value in earlier.get(job.value, ()):
                    if asked[value] > taken.ended and value not in dead:
                        what = f"{taken.worker} got {job.value} at {taken.at}, {value} comes before"
                        yield Finding(Kind.OVERTAKEN, what)
