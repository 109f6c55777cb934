"""Messages that must be there, may be gone, and must be gone.

    acknowledged ─┬─ and not removed ────────────────────▶ must be there
                  ├─ removed by an answered request ─────▶ must be gone
                  └─ removed by an unanswered one ───────▶ may be either
    refused ─────────────────────────────────────────────▶ must be gone
    unknown ─────────────────────────────────────────────▶ may be either

Compaction and `retention_bytes` remove messages within bounds that depend on the content of a
reading, so `logs` checks them.
"""

from enum import Enum, auto

from integration.soak.checker.history import DONE, REFUSED, History, Op, Sent


class Fate(Enum):
    """The required state of a message in a reading of everything."""

    THERE = auto()
    EITHER = auto()
    GONE = auto()


class Fates:
    """The fates of the messages of one topic, once everything is quiet."""

    def __init__(self, history: History, topic: str) -> None:
        self._erasures: dict[str, list[Op]] = {}
        self._erased_alone: dict[str, list[Op]] = {}
        for op in history.of_kind("erase", topic):
            if op.fields.get("key") is not None:
                self._erasures.setdefault(op.fields["key"], []).append(op)
            else:
                self._erased_alone.setdefault(op.fields["of"], []).append(op)
        self._truncations = history.of_kind("truncate", topic)
        self._cancels: dict[str, list[Op]] = {}
        for op in history.of_kind("cancel", topic):
            self._cancels.setdefault(op.fields["of"], []).append(op)

    def of(self, sent: Sent) -> Fate:
        """The fate of a message."""
        if sent.op.how == REFUSED:
            return Fate.GONE
        taken = Fate.THERE
        for fate in (*self._erased(sent), *self._truncated(sent), *self._cancelled(sent)):
            if fate is Fate.GONE:
                return Fate.GONE
            if fate is Fate.EITHER:
                taken = fate
        return taken if sent.op.acknowledged else Fate.EITHER

    def gone_since(self, sent: Sent) -> float | None:
        """The time from which no reader may get the message."""
        ends = [
            op.end
            for op in (
                *self._erasures.get(sent.key or "", ()),
                *self._erased_alone.get(sent.name, ()),
                *self._truncations,
            )
            if op.how == DONE and self._took(op, sent) is Fate.GONE
        ]
        return min(ends, default=None)

    def _erased(self, sent: Sent) -> list[Fate]:
        taking = list(self._erasures.get(sent.key or "", ())) if sent.key is not None else []
        taking += self._erased_alone.get(sent.name, ())
        return [self._took(op, sent) for op in taking]

    def _truncated(self, sent: Sent) -> list[Fate]:
        return [self._took(op, sent) for op in self._truncations]

    def _cancelled(self, sent: Sent) -> list[Fate]:
        found = []
        for op in self._cancels.get(sent.name, ()):
            if op.how != DONE:
                found.append(Fate.EITHER)
            elif op.answer.get("cancelled"):
                found.append(Fate.GONE)
        return found

    def _took(self, op: Op, sent: Sent) -> Fate:
        """The effect of one erasure or truncation on a message."""
        before = op.fields.get("before", "latest")
        if op.how == REFUSED or sent.op.begin > op.end:  # its id may be lower: clocks differ
            return Fate.THERE
        if op.kind == "truncate" and before != "latest" and sent.id is not None:
            if sent.id >= before:
                return Fate.THERE
            return Fate.GONE if op.how == DONE and sent.op.end < op.begin else Fate.EITHER
        if sent.op.kind == "delayed" and op.kind == "truncate":
            return Fate.EITHER  # it came into the log when no reader looked
        if op.how == DONE and sent.op.end < op.begin and before == "latest":
            return Fate.GONE
        return Fate.EITHER
