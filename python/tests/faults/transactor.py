"""A process that commits numbered transactions over two topics and a position, and notes
acknowledgements; and the checks of its directory, however it ended.

    python transactor.py DATA LEDGER

Transaction n puts the message n into both topics, small ones and large, and moves the group to n.
"""

import os
import sys
from pathlib import Path

import tms
from tms.client.client import Bus
from tms.model.position import Position

COUNT = 24
TOPICS = ("left", "right")
GROUP = "g"


def value_of(number: int) -> bytes:
    """The value of a message; every third one does not fit into the database."""
    return b"%d/" % number + b"x" * (6_000 if number % 3 == 0 else 100)


def is_synced(number: int) -> bool:
    """True for every other transaction."""
    return number % 2 == 0


def work(data: Path, ledger: Path) -> None:
    fd = os.open(ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    with tms.open(data, threads=2) as bus:
        for topic in TOPICS:
            bus.create_topic(topic, partitions=2)
        os.write(fd, b"created 0\n")
        for number in range(COUNT):
            os.write(fd, b"try %d\n" % number)
            commit(bus, number)
            os.write(fd, b"done %d\n" % number)


def commit(bus: Bus, number: int) -> None:
    """Commit one transaction. Its position goes through the engine, so that it needs no
    consumer."""
    from tms.block import encode
    from tms.client.topic_cache import as_durability
    from tms.model.message import NewBlock
    from tms.model.topic import TopicName
    from tms.model.transaction import Commit, PositionChange, PositionKey, TopicBlock

    name = TopicName.parse(TOPICS[0])
    bus._transport.transactions.commit(
        Commit(
            token=f"n{number}",
            blocks=tuple(
                TopicBlock(TopicName.parse(topic), NewBlock(number % 2, encode([value_of(number)])))
                for topic in TOPICS
            ),
            positions=(PositionChange(PositionKey(GROUP, name, 0), Position.offset(number)),),
            durability=as_durability("synced" if is_synced(number) else "written"),
        )
    )


def check(data: Path, ledger: bytes, power_lost: bool = False) -> int:
    """Open the directory and check it; returns the number of visible transactions."""
    lines = [line.split() for line in ledger.decode().splitlines() if line]
    created = any(kind == "created" for kind, _ in lines)
    tried = [int(number) for kind, number in lines if kind == "try"]
    done = [int(number) for kind, number in lines if kind == "done"]
    with tms.open(data, threads=2) as bus:
        if not created:
            return 0
        seen = [visible(bus, topic) for topic in TOPICS]
        assert seen[0] == seen[1], f"a transaction is torn: {seen[0] ^ seen[1]}"
        assert seen[0] <= set(tried), "nobody sent that"
        sure = {number for number in done if is_synced(number) or not power_lost}
        assert sure <= seen[0], f"lost {sorted(sure - seen[0])}"
        position = bus.positions(TOPICS[0], group=GROUP)
        expected = {0: Position.offset(max(seen[0]))} if seen[0] else {}
        assert position == expected, f"the position is torn: {position}, seen {sorted(seen[0])}"
        commit(bus, COUNT)  # the directory can still be written
        assert visible(bus, TOPICS[1]) == seen[0] | {COUNT}
        return len(seen[0])


def visible(bus: Bus, topic: str) -> set[int]:
    """The numbers of a topic's messages, once each and in order."""
    found: set[int] = set()
    for partition in range(2):
        consumer = bus.consumer(topic, partitions=[partition], stop_at_end=True)
        numbers = []
        for message in consumer:
            assert message.value is not None
            number = int(message.value.partition(b"/")[0])
            assert message.value == value_of(number), "a wrong byte"
            numbers.append(number)
        assert numbers == sorted(set(numbers)), f"out of order or twice: {numbers}"
        found.update(numbers)
    return found


def main() -> None:
    work(Path(sys.argv[1]), Path(sys.argv[2]))
