"""Delayed messages in a data directory: their space, damage, and a scheduler beside clients."""

import contextlib
import threading
import time
from pathlib import Path

import pytest

import tms
from tests.delay_kit import World
from tms.cli.checks.verify import Mend, Verifier
from tms.delayed.entries import entry_key
from tms.model import keys
from tms.model.topic import Durability
from tms.store.leveldb import LevelDBStore


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(inner=LevelDBStore(tmp_path / "data", create=True))


def test_the_space_of_large_messages_comes_back_while_others_wait(
    world: World, tmp_path: Path
) -> None:
    world.later(b"for ever", delay_ms=10**12)
    for _ in range(60):
        world.later(bytes(1 << 20), delay_ms=1)
        world.clock.pass_ms(1)
        world.delayed.move()
    found = tmp_path / "data" / "maps" / "t00000001+delayed"
    assert sum(file.stat().st_size for file in found.iterdir()) < 40 << 20


def test_messages_are_less_than_a_second_late_under_load_and_over_a_restart(
    tmp_path: Path,
) -> None:
    """Two thousand messages over two seconds; the engine restarts in the middle."""
    count, received = 2_000, []
    began_ms = int(time.time() * 1_000) + 300
    with tms.open(tmp_path / "data") as bus:
        bus.create_topic("a", partitions=2, durability="written")
        for number in range(count):
            bus.publish_later("a", b"%d" % number, at=began_ms + number, durability="written")
    with tms.open(tmp_path / "data") as bus:
        stop = threading.Event()

        def publish() -> None:
            while not stop.is_set():
                bus.publish_many("a", [b"beside"] * 100)

        thread = threading.Thread(target=publish)
        thread.start()
        with contextlib.closing(bus.consumer("a")) as consumer:
            for message in consumer:
                if message.value != b"beside":
                    received.append((int(message.value or b""), message.timestamp_ms))
                if len(received) == count:
                    break
        stop.set()
        thread.join()
    assert sorted(number for number, _ in received) == list(range(count))
    assert all(at >= began_ms + number for number, at in received)


@pytest.mark.parametrize("cut", [10, 200])
def test_what_waits_and_is_damaged_is_named_and_the_rest_is_kept(world: World, cut: int) -> None:
    world.later(b"whole", delay_ms=1_000)
    (id,) = world.later(b"damaged", delay_ms=2_000)
    name = next(name for name in world.store.names("t") if keys.is_delayed_map(name))
    rows = world.store.open(name, create=False)
    stored = rows.get(entry_key(id))
    assert stored is not None and not list(Verifier(world.store).run())
    broken = stored[:cut] + bytes([stored[cut] ^ 1]) + stored[cut + 1 :]
    rows.write([(entry_key(id), broken)], Durability.SYNCED)
    (finding,) = Verifier(world.store).run()
    assert finding.row == entry_key(id) and finding.mend is Mend.ROW
    world.clock.pass_ms(5_000)
    world.delayed.move()
    assert world.read() == [b"whole"]
    (warning,) = world.engine.warnings()
    assert warning.startswith("Delayed messages of a are not delivered: A stored block is damaged")
    rows.delete([entry_key(id)])
    world.later(b"next", delay_ms=0)
    world.clock.pass_ms(10_001)
    world.delayed.move()
    assert world.read() == [b"whole", b"next"] and world.engine.warnings() == []
