"""Faults 6, 7 and 8: torn ends, flipped bits and deleted files in a data directory."""

import logging
import os
import shutil
from pathlib import Path
from random import Random

import pytest

import tms
from tests.faults import damaged, publisher
from tests.faults.damaged import TOPIC, Outcome
from tests.faults.history import History, read_all
from tests.faults.mending import fsck
from tests.faults.service import Service
from tms.errors import DataCorrupt

FLIPS = 8  # in each class of files
CLASSES = [
    "FORMAT",
    *(
        f"{kind} {name}"
        for kind in ("metadata", "sealed segment", "open segment")
        for name in ("CURRENT", "MANIFEST-*", "*.log", "*.ldb", "values")
        # These are empty.
        if (kind, name) not in {("sealed segment", "*.log"), ("metadata", "values")}
    ),
]
MAPS = ["metadata", "sealed segment", "open segment"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, History]:
    """An intact data directory."""
    path = tmp_path_factory.mktemp("whole") / "data"
    return path, damaged.make(path)


@pytest.mark.parametrize("kind", CLASSES)
def test_fault_7_a_flipped_bit_is_an_error_that_fsck_names_and_never_a_wrong_byte(
    kind: str, whole: tuple[Path, History], fast_path: Path
) -> None:
    path, history = whole
    file = dict(damaged.file_classes(path))[kind]
    random = Random(kind)
    places = damaged.significant(path / file)
    refused = 0
    for position in random.sample(places, min(len(places), FLIPS)):
        data = damaged.copy(path, fast_path / "data")
        flip(data / file, position, random.randrange(8))
        code, said = fsck(data)
        if damaged.outcome(data, history) is Outcome.REFUSED:
            refused += 1
            assert code != 0, f"fsck says nothing of byte {position} of {file}:\n{said}"
            assert place(file) in said, said
        else:  # only a repair reads the bytes around a value in `values`
            harmless = kind == "FORMAT" or file.name == "values"
            assert harmless, f"a flip in byte {position} of {file} was not noticed"
    assert refused >= (FLIPS * 0.8 if file.name == "values" else 1)


@pytest.mark.parametrize("kind", CLASSES)
def test_fault_8_a_directory_without_one_of_its_files_is_refused(
    kind: str, whole: tuple[Path, History], fast_path: Path
) -> None:
    path, history = whole
    data = damaged.copy(path, fast_path / "data")
    (data / dict(damaged.file_classes(path))[kind]).unlink()
    assert damaged.outcome(data, history) is Outcome.REFUSED
    assert maps(data) == maps(path), "what was left was deleted"


@pytest.mark.parametrize("kind", MAPS)
def test_fault_8_a_directory_with_a_missing_database_is_refused_untouched(
    kind: str, whole: tuple[Path, History], fast_path: Path
) -> None:
    path, history = whole
    data = damaged.copy(path, fast_path / "data")
    gone = (data / dict(damaged.file_classes(path))[f"{kind} CURRENT"]).parent
    shutil.rmtree(gone)
    code, said = fsck(data)
    assert code != 0 and place(gone / "CURRENT") in said, said
    assert damaged.outcome(data, history) is Outcome.REFUSED
    assert maps(data) == maps(path) - {gone.name}, "what was left was deleted"


def test_fault_6_a_torn_end_of_a_segment_loses_only_that_end_and_says_how_much(
    whole: tuple[Path, History], fast_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, history = whole
    file = dict(damaged.file_classes(path))["open segment *.log"]
    size, partition = (path / file).stat().st_size, int(file.parent.name[11:16])
    kept = len(history.acknowledged)
    for lost in sorted({1, 2, 7, 8, size - 1, *Random(6).sample(range(3, size), 10)}):
        data = damaged.copy(path, fast_path / "data")
        os.truncate(data / file, size - lost)
        caplog.clear()
        with caplog.at_level(logging.WARNING), publisher.open_bus(data) as bus:
            messages = read_all(bus, TOPIC)
            left = damaged.copy_of(history)
            left.synced = {n for n in left.synced if n % 2 != partition}
            left.check(messages, power_lost=True)
            assert len(history.acknowledged) - 2 <= len(messages) <= kept
            kept = len(messages)
            bus.publish(TOPIC, b"later", partition=partition)
        dropped = [
            record.getMessage() for record in caplog.records if "torn" in record.getMessage()
        ]
        at_a_boundary = lost == size or not dropped
        assert at_a_boundary or file.name in dropped[0], caplog.text
    assert kept == len(history.acknowledged) - 2, "no message was torn"


def test_fault_8_lost_records_never_count_as_leftovers_and_a_repair_recovers_all(
    fast_path: Path,
) -> None:
    """Records are synced, so no crash tears them off; but a bad disk or copy may."""
    path, history = fast_path / "whole", History(partitions=2)
    with publisher.open_bus(path) as bus:
        bus.create_topic(TOPIC, partitions=2)
        damaged.publish(bus, history, 40)
    (file,) = (path / "maps/metadata").glob("*.log")
    size = file.stat().st_size
    repaired = 0
    for lost in sorted({1, size, *Random(6).sample(range(1, size), 12)}):
        data = damaged.copy(path, fast_path / "data")
        os.truncate(data / file.relative_to(path), size - lost)
        if damaged.outcome(data, history) is Outcome.REFUSED:
            repaired += 1
            assert maps(data) == maps(path), "what was left was deleted"
            code, said = fsck(data, "--repair")
            assert code == 0, said
            with publisher.open_bus(data) as bus:
                (topic,) = (info.topic for info in bus.list_topics())
                history.check(read_all(bus, topic))
    assert repaired > 3


def test_fault_7_a_service_reports_damaged_bytes_and_serves_the_rest(
    whole: tuple[Path, History], fast_path: Path
) -> None:
    path, history = whole
    data = damaged.copy(path, fast_path / "data")
    file = dict(damaged.file_classes(path))["sealed segment *.ldb"]
    flip(data / file, (path / file).stat().st_size // 2, 3)
    _, hurt, _ = file.parent.name.split("+")
    with Service(data) as service, tms.connect(service.url) as bus:
        for partition in range(history.partitions):
            if partition == int(hurt[1:]):
                with pytest.raises(DataCorrupt):
                    list(bus.consumer(TOPIC, partitions=[partition], stop_at_end=True))
            else:
                found = bus.consumer(TOPIC, partitions=[partition], stop_at_end=True)
                ids = {str(message.id) for message in found}
                assert ids == {i for n, i in history.acknowledged.items() if n % 2 == partition}
        assert service.stop() == 0


def flip(file: Path, position: int, bit: int) -> None:
    data = bytearray(file.read_bytes())
    data[position] ^= 1 << bit
    file.write_bytes(data)


def maps(data: Path) -> set[str]:
    return {one.name for one in (data / "maps").iterdir()}


def place(file: Path) -> str:
    """The place of a file as fsck names it."""
    if file.name == "FORMAT":
        return "data"
    if file.parent.name == "metadata":
        return "metadata"
    _, partition, segment = file.parent.name.split("+")
    return f"{TOPIC}, partition {int(partition[1:])}, segment {int(segment[1:])}"
