"""The memory of a receive follows the messages that it delivers, not the blocks that they are cut
from."""

import subprocess
import sys
import textwrap
from collections.abc import Callable

import pytest

from tests.queues.test_queues import DEAD, JOBS, World
from tms.api.queues import decode_received, encode_received, received_json
from tms.block import Columns, Compression, columns, decode, encode
from tms.block.received import Received
from tms.engine.config import EngineConfig
from tms.model.message import NewBlock

ZSTD = Compression.ZSTD


def publish(world: World, values: list[bytes], compression: Compression = ZSTD) -> None:
    keys: list[bytes | None] = [b"%d" % n for n in range(len(values))]
    block = encode(values, keys, compression=compression)
    world.engine.append(JOBS, [NewBlock(0, block)])


def scattered(world: World, every: int, limit: int = 10_000, bytes_max: int = 4 << 20) -> Received:
    """Receive redelivered messages of which no two are neighbours in a block."""
    found = []
    while some := world.receive(10_000, 1 << 30):
        found += some
    world.nack(*found[::every], delay_s=0)
    return world.queues.receive(JOBS, "g", limit, 0, bytes_max)


def thrice(received: Received) -> object:
    return [received.messages("jobs") for _ in range(3)][-1]


def as_blocks(received: Received) -> object:
    return decode_received(b"".join(encode_received(received))).messages("jobs")


@pytest.fixture
def unpacked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with each block that is unpacked."""
    counted: list[int] = []
    right = columns.record_batch

    def record_batch(*args: object) -> object:
        counted.append(1)
        return right(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(columns, "record_batch", record_batch)
    return counted


@pytest.mark.parametrize(
    ("use", "times"), [(thrice, 3), (received_json, 1), (as_blocks, 1)], ids=["", "json", "blocks"]
)
@pytest.mark.parametrize("sparse", [False, True], ids=["whole", "sparse"])
def test_slices_of_a_compressed_block_unpack_it_once(
    use: Callable[[Received], object], times: int, sparse: bool, unpacked: list[int]
) -> None:
    world = World()
    publish(world, [b"%d" % n * 50 for n in range(1_000)])
    if sparse:
        for n in range(0, 20, 2):
            assert world.engine.erase(JOBS, key=b"%d" % n) == 1
    received = scattered(world, 3)
    assert len(received.slices) > 300
    unpacked.clear()
    use(received)
    assert len(unpacked) == times
    assert all(one.columns._batch is None for one in received.slices), "it is kept"


def test_dead_letters_of_one_compressed_block_unpack_it_once(unpacked: list[int]) -> None:
    world = World()
    publish(world, [b"%d" % n * 50 for n in range(16)])
    found = world.receive()
    unpacked.clear()
    world.reject(*found)
    assert world.queues.tidy() == 16
    assert len(unpacked) == 1 and len(world.read(DEAD)) == 16


def test_keys_of_a_compressed_block_are_unpacked_once(unpacked: list[int]) -> None:
    world = World(ordered_by="key")
    publish(world, [b"%d" % n for n in range(5_000)])
    unpacked.clear()
    assert len(world.queues.receive(JOBS, "g", 5_000)) == 5_000
    assert len(unpacked) == 1


@pytest.mark.parametrize("compression", [Compression.NONE, ZSTD])
def test_a_large_message_among_small_ones_counts_with_its_own_size(
    compression: Compression,
) -> None:
    world = World(lease_s=600)
    for _ in range(10):
        publish(world, [bytes(1_000_000), *[b""] * 99], compression)
    again = scattered(world, 100, 100, 2_500_000)
    assert [len(one.value or b"") for one in again.messages("jobs")] == [1_000_000] * 3
    assert len(world.receive(100, 2_500_000)) == 3


@pytest.mark.parametrize("compression", [Compression.NONE, ZSTD])
def test_of_new_messages_as_many_come_as_fit(compression: Compression) -> None:
    world = World(lease_s=600)
    publish(world, [*[b""] * 10, *[bytes(1_000_000)] * 5, b""], compression)
    sizes = []
    while found := world.receive(bytes_max=2_100_000):
        sizes.append([len(one.value or b"") for one in found])
    assert sizes == [[0] * 10 + [1_000_000] * 2, [1_000_000] * 2, [1_000_000, 0]]


def test_retries_from_many_blocks_keep_few_of_them_in_memory() -> None:
    world = World(lease_s=600)
    for n in range(10):
        publish(world, [b"%d" % n, *[bytes(1_000)] * 999], Compression.NONE)
    total = 0
    received = scattered(world, 1_000, bytes_max=2 << 20)
    values: list[bytes | None] = []
    while received:
        held = {id(one.columns.origin[0]): len(one.columns.origin[0]) for one in received.slices}
        assert sum(held.values()) <= 4 << 20
        values += [one.value for one in received.messages("jobs")]
        total += 1
        received = world.queues.receive(JOBS, "g", 10_000, 0, 2 << 20)
    assert values == [b"%d" % n for n in range(10)] and total >= 3


@pytest.mark.parametrize("headers", [False, True])
@pytest.mark.parametrize("compression", [*Compression])
def test_ends_say_how_large_each_message_is(compression: Compression, headers: bool) -> None:
    values = [None, b"", *[bytes(n) for n in range(100)]]
    keys = [None if n % 3 else bytes(n) for n in range(102)]
    names = [{f"h{i}": bytes(n) for i in range(n % 4)} if headers else None for n in range(102)]
    found: Columns = decode(encode(values, keys, names, compression=compression))
    ends = found.ends()
    for n in range(102):
        size = len(values[n] or b"") + len(keys[n] or b"")
        size += sum(len(name) + len(text) for name, text in (names[n] or {}).items())
        assert ends.between(n, n + 1) == size


HOSTILE = """
    import resource
    from tests.queues.test_queue_memory import ZSTD, as_blocks, publish, scattered
    from tests.queues.test_queues import JOBS, World
    from tms.api.queues import received_json

    world = World(lease_s=600)
    for _ in range(3):
        publish(world, [bytes(500)] * 60_000)
    publish(world, [b"warm"])
    found = scattered(world, 7)
    assert len(found) > 1_000
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (400 << 20), -1))
    for use in (lambda one: one.messages("jobs"), received_json, as_blocks):
        use(found)
    while found:
        found = world.queues.receive(JOBS, "g", 1_000)
        found.messages("jobs")
"""


@pytest.mark.slow
def test_a_thousand_slices_of_a_block_that_gets_large_fit_into_little_memory() -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(HOSTILE)],
        env={"PYTHONPATH": ":".join(filter(None, sys.path)), "ARROW_DEFAULT_MEMORY_POOL": "system"},
        capture_output=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr.decode()[-2_000:]


assert EngineConfig().block_bytes == 32 << 20  # the blocks above have this size
