"""A data directory with files of every class, to be damaged, and the outcomes of reading it."""

import shutil
from collections.abc import Iterator, Sequence
from enum import Enum, auto
from pathlib import Path

from tests.faults import publisher
from tests.faults.history import SYNCED, History, read_all, value_of
from tms.client.client import Bus
from tms.errors import ConfigError, DataCorrupt

TOPIC = "orders"
_FOOTER_BYTES = 48  # of a table: where its filters and its index are, padding, and
_MAGIC_BYTES = 8


class Outcome(Enum):
    """The possible outcomes of opening and reading a damaged directory."""

    REFUSED = auto()  # the start or a read is refused, with an error that names the damage
    INTACT = auto()  # every message is there: the damage had no effect


def make(path: Path) -> History:
    """Two partitions of some segments; the databases of the last ones have a table and a log."""
    history = History(partitions=2)
    with publisher.open_bus(path) as bus:
        bus.create_topic(TOPIC, partitions=2)
        publish(bus, history, 40)
    with publisher.open_bus(path) as bus:
        read_all(bus, TOPIC)  # opens all segments: their logs become tables
        bus.create_topic("later")  # that of the metadata, too; this is in the next log
        publish(bus, history, 4)
    return history


def publish(bus: Bus, history: History, count: int) -> None:
    """Publish more messages, synced, and note them."""
    for number in range(len(history.tried), len(history.tried) + count):
        history.tried.append(number)
        value = value_of(0, number, 5_000 if number % 7 < 2 else 0)  # some are stored in `values`
        id = bus.publish(TOPIC, value, partition=number % 2, durability=SYNCED)
        history.acknowledged[number] = str(id)
        history.synced.add(number)


def outcome(path: Path, history: History) -> Outcome:
    """Open the directory and read everything; fails if a message is lost or wrong."""
    try:
        with publisher.open_bus(path) as bus:
            history.check(read_all(bus, TOPIC))
            publish(bus, copy_of(history), 2)
    except (DataCorrupt, ConfigError):
        return Outcome.REFUSED
    return Outcome.INTACT


def copy_of(history: History) -> History:
    """A copy of the history that can be extended by itself."""
    return History(
        history.life,
        history.partitions,
        list(history.tried),
        dict(history.acknowledged),
        set(history.synced),
    )


def copy(source: Path, target: Path) -> Path:
    """Copy the directory over an earlier copy."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    return target


def file_classes(path: Path) -> Iterator[tuple[str, Path]]:
    """One file of each class with significant bytes, by a readable name."""
    yield "FORMAT", Path("FORMAT")
    maps = sorted((path / "maps").iterdir())
    chosen = {
        "metadata": path / "maps" / "metadata",
        "sealed segment": maps[1],
        "open segment": max(maps[1:], key=lambda one: (one.name[:15], one.name)),
    }
    for kind, directory in chosen.items():
        for name in ("CURRENT", "MANIFEST-*", "*.log", "*.ldb", "values"):
            found = [one for one in directory.glob(name) if one.stat().st_size]
            if found:
                yield f"{kind} {name}", sorted(found)[-1].relative_to(path)


def significant(file: Path) -> Sequence[int]:
    """The places of the bytes that are read. In a table of LevelDB nobody reads the list of
    filters, which is empty, where it is, and the padding of the footer."""
    size = file.stat().st_size
    if file.suffix != ".ldb":
        return range(size)
    table = file.read_bytes()
    footer = size - _FOOTER_BYTES
    filters, at = _varint(table, footer)
    _, index_handle = _varint(table, at)
    index, at = _varint(table, index_handle)
    _, padding = _varint(table, at)
    return [
        *range(filters),
        *range(index, footer),
        *range(index_handle, padding),
        *range(size - _MAGIC_BYTES, size),
    ]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number and the place behind it."""
    number = shift = 0
    while data[at] & 0x80:
        number |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
    return number | data[at] << shift, at + 1
