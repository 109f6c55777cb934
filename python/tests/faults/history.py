"""The attempts of a publisher, their acknowledgements, and the proof that all acknowledged messages
are there.

* A value names its topic's life and its number and is random otherwise, so that a wrong byte, a
  message of another life and a message that was never sent all show.
* Numbers ascend in the order of sending, and each goes to the partition `number % partitions`, so
  that order shows too.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tms.client.client import Bus
from tms.model.message import Message

SYNCED, WRITTEN = "synced", "written"
_PAD = Random(1).randbytes(1 << 20)


def value_of(life: int, number: int, size: int = 0) -> bytes:
    """The value of a numbered message, about `size` bytes long or, with 0, a size of its own."""
    head = b"%d/%d/%d/" % (life, number, size)
    wanted = size or number * 7_919 % 3_000
    start = number * 31_337 % (len(_PAD) // 2)
    return head + _PAD[start : start + wanted]


def number_of(value: bytes | None, life: int) -> int:
    """The number of a message; fails if a byte of it is wrong, or if it is of another life."""
    assert value is not None, "a value is missing"
    parts = value.split(b"/", 3)
    assert len(parts) == 4 and int(parts[0]) == life, f"nobody sent {value[:40]!r} in life {life}"
    number = int(parts[1])
    assert value == value_of(life, number, int(parts[2])), f"message {number} has wrong bytes"
    return number


@dataclass
class History:
    """One life of a topic: attempts and acknowledgements, with id and durability."""

    life: int = 0
    partitions: int = 1
    tried: list[int] = field(default_factory=list)
    acknowledged: dict[int, str] = field(default_factory=dict)
    synced: set[int] = field(default_factory=set)
    state: str = "created"

    def check(self, messages: Sequence[Message], power_lost: bool = False) -> None:
        """Check that every acknowledged message is there, once, with its bytes, id and place, and
        no other.

        After a power loss, messages that were only written may be missing at the end of each
        partition.
        """
        found = self.check_order(messages)
        strange = found.keys() - set(self.tried)
        assert not strange, f"nobody sent {sorted(strange)[:5]}"
        for number in self.acknowledged.keys() & found.keys():
            was, now = self.acknowledged[number], str(found[number].id)
            assert was == now, f"message {number} was acknowledged as {was} and is {now}"
        for partition in range(self.partitions):
            sent = [n for n in self.tried if n % self.partitions == partition]
            here = [n for n in found if n % self.partitions == partition]
            must = [n for n in sent if n in (self.synced if power_lost else self.acknowledged)]
            lost = set(sent[: sent.index(must[-1]) + 1] if must else ()) & (
                self.acknowledged.keys() - set(here)
            )
            assert not lost, f"partition {partition} lost the acknowledged {sorted(lost)[:5]}"
            whole = [n for n in sent if n in found or n in self.acknowledged]
            assert here == whole[: len(here)], f"partition {partition} has a hole or is reordered"

    def check_order(self, messages: Sequence[Message]) -> dict[int, Message]:
        """The messages by number, checked: offsets are dense, ids and numbers ascend, no number is
        there twice, no byte is wrong."""
        found: dict[int, Message] = {}
        last: dict[int, tuple[int, str, int]] = {}
        for message in messages:
            number = number_of(message.value, self.life)
            assert number not in found, f"message {number} is there twice"
            assert message.partition == number % self.partitions
            found[number] = message
            now = (message.offset, str(message.id), number)
            if message.partition in last:
                offset, id, before = last[message.partition]
                assert now[0] == offset + 1, f"offset {now[0]} follows {offset}"
                assert now[1] > id, f"id {now[1]} follows {id}"
                assert now[2] > before, f"message {now[2]} follows {before}"
            last[message.partition] = now
        return found


class Ledger:
    """Histories in a file: one line of JSON for each step, written with one system call."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, *words: object) -> None:
        """`creating|created|deleting|deleted TOPIC LIFE PARTITIONS`, `try TOPIC NUMBER`,
        `ack TOPIC NUMBER ID DURABILITY`."""
        os.write(self._fd, json.dumps(words).encode() + b"\n")

    def close(self) -> None:
        os.close(self._fd)


def read_ledger(lines: bytes) -> dict[str, History]:
    """The last life of each topic in a ledger; a last line that was cut off was not written."""
    found: dict[str, History] = {}
    for line in lines.split(b"\n")[:-1]:
        kind, topic, *rest = json.loads(line)
        match kind:
            case "creating":
                found[topic] = History(rest[0], rest[1], state="creating")
            case "created" | "deleting" | "deleted":
                found[topic].state = kind
            case "try":
                found[topic].tried.append(rest[0])
            case "ack":
                found[topic].acknowledged[rest[0]] = rest[1]
                if rest[2] == SYNCED:
                    found[topic].synced.add(rest[0])
    return found


def read_all(bus: Bus, topic: str) -> list[Message]:
    """Every message of a topic, partition by partition."""
    partitions = bus.describe_topic(topic).settings.partitions
    found: list[Message] = []
    for partition in range(partitions):
        found += bus.consumer(topic, partitions=[partition], stop_at_end=True)
    return found


def check_bus(bus: Bus, histories: dict[str, History], power_lost: bool = False) -> None:
    """Check every topic of a bus against its history; then publishing goes on behind it."""
    there = {info.topic: info for info in bus.list_topics()}
    assert there.keys() <= histories.keys(), f"nobody created {there.keys() - histories.keys()}"
    lasts: dict[str, dict[int, Message]] = {}
    for topic, history in histories.items():
        if history.state == "created":
            assert topic in there, f"the topic {topic} was acknowledged and is lost"
        elif history.state == "deleted":
            assert topic not in there, f"the topic {topic} was deleted and is back"
        if topic in there:
            messages = read_all(bus, topic)
            history.check(messages, power_lost)
            lasts[topic] = {message.partition: message for message in messages}
    for topic, last in lasts.items():
        for partition in range(histories[topic].partitions):
            _check_goes_on(bus, topic, partition, last.get(partition))


def _check_goes_on(bus: Bus, topic: str, partition: int, last: Message | None) -> None:
    id = bus.publish(topic, b"later", partition=partition)
    start = "earliest" if last is None else last.id
    *_, now = bus.consumer(topic, start=start, partitions=[partition], stop_at_end=True)
    assert (now.id, now.value) == (id, b"later")
    assert last is None or (now.id > last.id and now.offset == last.offset + 1)
