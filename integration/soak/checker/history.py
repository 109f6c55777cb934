"""The ledgers as operations and messages."""

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

STOPPING_S = 15.0  # longest time for which a stopping service still answers
DONE, REFUSED, UNKNOWN = "done", "refused", "unknown"


class Finding(NamedTuple):
    """A violation."""

    rule: str
    text: str

    def __str__(self) -> str:
        return f"[{self.rule}] {self.text}"


@dataclass(slots=True)
class Op:
    """An operation, from `begin` to `end` (infinite without a known end)."""

    name: str
    kind: str
    begin: float
    fields: dict[str, Any]
    end: float = math.inf
    how: str = UNKNOWN
    messages: list["Sent"] = field(default_factory=list)
    answer: dict[str, Any] = field(default_factory=dict)

    @property
    def acknowledged(self) -> bool:
        """True if its messages must survive a kill of the service."""
        return self.how == DONE and self.fields.get("durability") != "none"


@dataclass(slots=True)
class Sent:
    """A message of a publish, whatever its outcome."""

    op: Op
    topic: str
    partition: int | None
    name: str
    key: str | None
    digest: str
    value: str
    id: str | None = None


class History:
    """All operations."""

    def __init__(self, lines: Iterable[dict[str, Any]]) -> None:
        self.ops: dict[str, Op] = {}
        self.sent: dict[str, dict[str, Sent]] = defaultdict(dict)  # by topic and name
        self.events: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for line in lines:
            match line["event"]:
                case "try":
                    self._begin(line)
                case "end":
                    self._end(line)
                case other:
                    self.events[other].append(line)

    def service_went(self, begin: float, end: float) -> bool:
        """True if the service was killed or stopped meanwhile, so that it has forgotten answers."""
        downs = (e["t"] for e in self.events["fault"] if e["what"] in ("kill", "stop"))
        return any(begin - STOPPING_S < t < end for t in downs)

    def losses(self, queue: str, what: str) -> list[float]:
        """The times when the proxy broke a request of a kind to a queue, `TOPIC/GROUP`."""
        topic, _, group = queue.partition("/")
        path = f"/topics/{topic}/queues/{group}/{what} "
        return [event["t"] for event in self.events["lossy"] if path in event["request"]]

    def of_kind(self, kind: str, topic: str) -> list[Op]:
        """Operations of a kind on a topic."""
        return [
            op for op in self.ops.values() if op.kind == kind and op.fields.get("topic") == topic
        ]

    def by_key(self, topic: str) -> dict[str, list[Sent]]:
        """The messages of a topic that have a key."""
        found: dict[str, list[Sent]] = defaultdict(list)
        for sent in self.sent[topic].values():
            if sent.key is not None:
                found[sent.key].append(sent)
        return found

    def add_copies(self, topic: str, other: str) -> None:
        """Any message of a topic may be in another one: as a dead letter, or copied."""
        op = Op(f"copies of {topic}", "copy", 0, {})
        for one in self.sent[topic].values():
            self.sent[other][one.name] = replace(one, op=op, topic=other, partition=None, id=None)

    def _begin(self, line: dict[str, Any]) -> None:
        op = Op(line["op"], line["kind"], line["t"], line)
        self.ops[op.name] = op
        for topic, partition, name, key, digest, value in line.pop("messages"):
            sent = Sent(op, topic, partition, name, key, digest, value)
            op.messages.append(sent)
            self.sent[topic][name] = sent

    def _end(self, line: dict[str, Any]) -> None:
        op = self.ops[line["op"]]
        op.how, op.answer = line["how"], line
        if op.how != UNKNOWN:
            op.end = line["t"]
        ids = line["ids"] or []
        for sent, id in zip(op.messages, ids, strict=False):
            sent.id = id
