"""Queues: each message goes to one worker at a time, until it is settled or dead; in the order of
its key if the queue is ordered by key.

Workers note a `lease` (name, deliveries, number, times of request and answer) and an operation
`settle`; a commit names the messages that it settles. `quiet` has the queue's counts at the end. A
delivery that no worker noted was lost on the way: by a fault, or by the proxy, which notes it as
`lossy`.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from integration.soak.checker.fates import Fates
from integration.soak.checker.history import DONE, REFUSED, UNKNOWN, Finding, History, Op
from integration.soak.checker.logs import SHOWN
from integration.soak.checker.reading import Reading

_ENDS = ("ack", "commit", "reject")
_TOLERANCE_S = 0.05


@dataclass(frozen=True, slots=True)
class Lease:
    """A delivery: requested at `begin`, received at `end`, for `lease_s`. Its number grows with
    each delivery and with each release; a released delivery is not among the deliveries."""

    name: str
    deliveries: int
    begin: float
    end: float
    lease_s: float
    number: int


@dataclass(frozen=True, slots=True)
class Settling:
    """A worker's request about a message, and its outcome."""

    name: str
    what: str
    begin: float
    end: float
    how: str


@dataclass(frozen=True, slots=True)
class Queue:
    """The events of one queue, by message."""

    name: str
    topic: str
    leases: dict[str, list[Lease]]
    settlings: dict[str, list[Settling]]
    settings: dict[str, Any]
    losses: list[float]  # times when the answer of a receive may have been lost


def check(
    history: History, queue: Queue, truth: Reading, dead: Reading | None
) -> Iterator[Finding]:
    """The contradictions between the events of a queue and its promises; `truth` is the topic,
    `dead` its dead letters."""
    yield from _leases(history, queue)
    yield from _outcomes(queue, truth, dead)
    if queue.settings.get("ordered_by") == "key":
        yield from _key_order(history, queue, truth, dead)
    for left in history.events["quiet"]:
        if left["queue"] == queue.name and any(left["counts"].values()):
            yield Finding("stuck", f"queue {queue.name} after quiet time: {left['counts']}")


def of(history: History, name: str, settings: dict[str, Any]) -> Queue:
    """The events in the ledgers about a queue, `TOPIC/GROUP`."""
    leases: dict[str, list[Lease]] = defaultdict(list)
    for one in history.events["lease"]:
        if one["queue"] == name:
            lease = Lease(
                one["name"],
                one["deliveries"],
                one["begin"],
                one["t"],
                one["lease_s"],
                one.get("number", one["deliveries"]),
            )
            leases[lease.name].append(lease)
    settlings: dict[str, list[Settling]] = defaultdict(list)
    for op in history.ops.values():
        for settling in _settlings(history, op, name):
            settlings[settling.name].append(settling)
    for found in leases.values():
        found.sort(key=lambda lease: lease.end)
    losses = [event["t"] for event in history.events["fault"]]
    losses += history.losses(name, "receive")
    return Queue(name, name.partition("/")[0], leases, settlings, settings, losses)


def _settlings(history: History, op: Op, queue: str) -> Iterator[Settling]:
    """The settlements of an operation, by message. An ack that is too late may be a repetition
    whose first answer was lost with the service, a reject may be one whose answer was lost on the
    way: the message may be dead by then."""
    if op.fields.get("queue") != queue or "names" not in op.fields:
        return
    what = op.fields.get("what", op.kind)
    late = set(op.answer.get("fenced", ()))
    lost = history.service_went(op.begin, op.end)
    if what == "reject":
        lost = lost or any(op.begin <= at <= op.end for at in history.losses(queue, what))
    refused = UNKNOWN if lost else REFUSED
    for name in op.fields["names"]:
        how = refused if name in late else op.how
        yield Settling(name, what, op.begin, op.end, how)


def _leases(history: History, queue: Queue) -> Iterator[Finding]:
    fates = Fates(history, queue.topic)
    most = int(queue.settings.get("deliveries_max", 16))
    wrong: dict[str, list[str]] = defaultdict(list)
    for name, leases in queue.leases.items():
        sent = history.sent[queue.topic].get(name)
        if sent is None:
            wrong["strange"].append(name)
            continue
        gone = fates.gone_since(sent)
        settled = min(
            (s.end for s in queue.settlings[name] if s.how == DONE and s.what in ("ack", "commit")),
            default=None,
        )
        for at, lease in enumerate(leases):
            if gone is not None and lease.begin > gone:
                wrong["handed out though gone"].append(f"{name}, {lease.begin - gone:.1f} s later")
            if settled is not None and lease.begin > settled:
                wrong["delivered after it was settled"].append(f"{name} #{lease.deliveries}")
            if most and lease.deliveries > most:
                wrong["delivered too often"].append(f"{name} #{lease.deliveries}")
            if at and lease.number <= leases[at - 1].number:
                wrong["deliveries do not grow"].append(f"{name} #{lease.deliveries}")
            if at and _too_soon(queue.settlings[name], leases[at - 1], lease):
                wrong["with two workers"].append(f"{name} #{lease.deliveries}")
    yield from _told(queue, wrong)


def _too_soon(settlings: list[Settling], before: Lease, lease: Lease) -> bool:
    """True if a message was delivered again during the lease before, and no worker had returned
    it."""
    ends = before.begin + before.lease_s - _TOLERANCE_S
    let_go = any(s.begin < lease.end and s.end > before.begin for s in settlings if s.what != "ack")
    return lease.end < ends and not let_go


def _outcomes(queue: Queue, truth: Reading, dead: Reading | None) -> Iterator[Finding]:
    letters = {row.name for row in dead.rows} if dead is not None else set()
    most = int(queue.settings.get("deliveries_max", 16))
    wrong: dict[str, list[str]] = defaultdict(list)
    for row in truth.rows:
        said = [s for s in queue.settlings[row.name] if s.how != REFUSED]
        done = [s for s in said if s.how == DONE and s.what in ("ack", "commit")]
        if done and row.name in letters:
            wrong["settled and dead"].append(row.name)
        if row.name in letters:
            rejected = any(s.what == "reject" for s in said)
            last = max((lease.deliveries for lease in queue.leases[row.name]), default=0)
            if not rejected and last + _lost_deliveries(queue, row.name) < most:
                wrong["dead too soon"].append(f"{row.name} #{last}")
        elif not done and not any(s.how == UNKNOWN and s.what in _ENDS for s in said):
            wrong["neither settled nor dead"].append(str(row))
    yield from _told(queue, wrong)


def _lost_deliveries(queue: Queue, name: str) -> int:
    """The most deliveries that there may have been since the last noted one."""
    since = max((lease.begin for lease in queue.leases[name]), default=0.0)
    return sum(lost > since for lost in queue.losses)


def _key_order(
    history: History, queue: Queue, truth: Reading, dead: Reading | None
) -> Iterator[Finding]:
    letters = {row.name for row in dead.rows} if dead is not None else set()
    wrong: dict[str, list[str]] = defaultdict(list)
    sent = history.sent[queue.topic]
    for rows in truth.partitions().values():
        open_until: dict[str, tuple[float, str]] = {}
        for row in rows:
            one = sent.get(row.name)
            if one is None or one.key is None:
                continue
            until, who = open_until.get(one.key, (0.0, ""))
            for lease in queue.leases[row.name]:
                if lease.end < until:
                    wrong["out of the order of its key"].append(f"{row.name} before {who}")
            if row.name in letters:
                continue
            said = queue.settlings[row.name]
            ends = [s.begin for s in said if s.how != REFUSED and s.what in _ENDS]
            earliest = min(ends, default=0.0)
            if earliest > until:
                open_until[one.key] = earliest, row.name
    yield from _told(queue, wrong)


def _told(queue: Queue, wrong: dict[str, list[str]]) -> Iterator[Finding]:
    for rule, texts in wrong.items():
        more = "" if len(texts) <= SHOWN else f" … {len(texts)}"
        yield Finding(rule, f"queue {queue.name}: {'; '.join(texts[:SHOWN])}{more}")
