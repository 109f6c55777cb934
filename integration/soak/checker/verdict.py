"""The verdict on a round: every contradiction in its readings and ledgers.

ROUND/topics.json      the settings of each topic: `TOPIC_FIELDS`
ROUND/*.ledger         operations
ROUND/*.reading        messages that readers saw
"""

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from integration.soak.checker import agreement, derived, logs, queues
from integration.soak.checker.history import Finding, History
from integration.soak.checker.reading import Reading, read_all
from integration.soak.ledger import lines

TRUTH = "fetch-json"  # the reader that all other readers are compared with
LAST = "opened consumer"  # the reader that comes last
TOPIC_FIELDS = (
    "compacted",
    "retention_bytes",
    "skew_ms",  # difference between the clocks of instances
    "queues",  # by group: its settings
    "groups",  # by name: its delivery, and its output topic
)


def judge(directory: Path) -> list[Finding]:
    """The violations in a round."""
    topics: dict[str, dict[str, Any]] = json.loads((directory / "topics.json").read_text())
    history = History(lines(directory))
    readings: dict[str, list[Reading]] = defaultdict(list)
    for found in read_all(directory):
        readings[found.topic].append(found)
    return list(_judge(history, readings, topics))


def _judge(
    history: History, readings: dict[str, list[Reading]], topics: dict[str, dict[str, Any]]
) -> Iterator[Finding]:
    for event in history.events["wrong"]:
        yield Finding("wrong", event["what"])
    for topic, settings in topics.items():
        for group in settings.get("queues", {}):
            history.add_copies(topic, f"{topic}-{group}-dead")
        if "copy_of" in settings:
            history.add_copies(settings["copy_of"], topic)
    truths: dict[str, Reading] = {}
    lasts = {one.topic: one for found in readings.values() for one in found if one.reader == LAST}
    for topic, settings in topics.items():
        truth = next((one for one in readings[topic] if one.reader == TRUTH), None)
        if truth is None:
            yield Finding("end", f"{topic}: nobody read it")
            continue
        truths[topic] = truth
        yield from logs.check(history, truth, settings)
        for other in readings[topic]:
            if other is not truth:
                yield from _other(history, truth, other, settings, lasts.get(topic))
    whole = {
        t: truth
        for t, truth in truths.items()
        if not topics[t].get("compacted") and not topics[t].get("retention_bytes")
    }
    yield from logs.check_whole(history, whole)
    for topic, truth in truths.items():
        yield from _made_of(history, truth, truths, topics[topic])


def _other(
    history: History,
    truth: Reading,
    other: Reading,
    settings: dict[str, Any],
    last: Reading | None,
) -> Iterator[Finding]:
    match other.fields.get("of", "log"):
        case "log" if other.fields.get("live"):
            yield from agreement.check_live(history, truth, other)
        case "log":
            yield from agreement.check(history, truth, other, settings, last)
        case "waiting":
            yield from derived.check_delayed(history, truth, other, settings.get("skew_ms", 0))
        case "view":
            yield from derived.check_view(history, truth, other)
        case "table":
            yield from derived.check_table(history, truth, other)


def _made_of(
    history: History, truth: Reading, truths: dict[str, Reading], settings: dict[str, Any]
) -> Iterator[Finding]:
    if settings.get("copy_of") in truths:
        yield from derived.check_copy(truths[settings["copy_of"]], truth)
    for group, of in settings.get("groups", {}).items():
        output = truths.get(of.get("output", ""))
        if of["delivery"] != "exactly-once" or output is not None:
            yield from derived.check_group(history, group, of["delivery"], truth, output)
    for group, of in settings.get("queues", {}).items():
        queue = queues.of(history, f"{truth.topic}/{group}", of)
        dead = truths.get(f"{truth.topic}-{group}-dead")
        yield from queues.check(history, queue, truth, dead)
