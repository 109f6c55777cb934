"""The messages that truncation excuses, and gone messages that must not be handed out any more."""

from collections import defaultdict
from collections.abc import Iterator

from sim.history import Acknowledged, Erased, History, Place, Read, Sent, Taken, Truncated
from sim.rules.findings import NEVER, Finding, Kind


class Cut:
    """The truncated messages, one by one."""

    def __init__(self, history: History) -> None:
        self._truncated = history.of(Truncated)
        self._erased = [one for one in history.of(Erased) if one.done and one.key]
        self._reads = history.of(Read)
        self._taken = history.of(Taken)
        self._sent: dict[str, tuple[Place, int]] = {}
        for sent in history.of(Sent):
            self._sent.update(dict.fromkeys(sent.values, (sent.place, sent.at)))
        self._ids: dict[str, set[str]] = defaultdict(set)
        self._known: dict[str, int] = {}  # when a message was first known to be there
        for at, place, messages in (
            *((one.at, one.place, one.messages) for one in history.of(Acknowledged)),
            *((one.ended, one.place, one.messages) for one in self._reads),
        ):
            for id, value in messages:
                if self._sent.get(value, (place, 0))[0] == place:
                    self._ids[value].add(id)
                    self._known[value] = min(self._known.get(value, NEVER), at)

    def excused(self, value: str) -> bool:
        """True if a message that was there need not be there at the end."""
        place, sent = self._sent.get(value, (("", 0), NEVER))
        ids = self._ids.get(value)
        return any(
            one.place == place and sent < one.ended and (ids is None or min(ids) <= one.upto)
            for one in self._truncated
        )

    def known(self, value: str) -> int:
        """When a message was first known to be there; `NEVER` if only at the end."""
        return self._known.get(value, NEVER)

    def _place(self, value: str) -> Place:
        return self._sent.get(value, (("", 0), NEVER))[0]

    def findings(self) -> Iterator[Finding]:
        """All violations."""
        for cut in self._truncated:
            if cut.done:
                yield from self._read_after(cut)
                yield from self._taken_after(cut)
        for erased in self._erased:
            yield from self._taken_after_erasing(erased)

    def _read_after(self, cut: Truncated) -> Iterator[Finding]:
        for read in self._reads:
            if read.place == cut.place and read.at > cut.ended:
                for id, value in read.messages:
                    if id <= cut.upto:
                        what = f"{read.reader} saw {value} at {read.at}, truncated at {cut.ended}"
                        yield Finding(Kind.UNERASED, what)

    def _taken_after(self, cut: Truncated) -> Iterator[Finding]:
        for taken in self._taken:
            for job in taken.jobs if taken.at > cut.ended else ():
                place, ids = self._place(job.value), self._ids.get(job.value)
                if place == cut.place and ids is not None and max(ids) <= cut.upto:
                    what = f"{taken.worker} got {job.value} at {taken.at}, truncated before"
                    yield Finding(Kind.UNERASED, what)

    def _taken_after_erasing(self, erased: Erased) -> Iterator[Finding]:
        for taken in self._taken:
            for job in taken.jobs if taken.at > erased.ended else ():
                known = self._known.get(job.value, NEVER)
                key = job.value.partition("=")[0]
                if (
                    known < erased.at
                    and self._place(job.value) in erased.places
                    and key == erased.key
                ):
                    what = f"{taken.worker} got {job.value} at {taken.at}, erased before"
                    yield Finding(Kind.UNERASED, what)
