"""The rows of delayed messages byte by byte: a version must find the rows of earlier ones."""

import struct
from hashlib import blake2b

import pytest

from tests.clocks import START_MS
from tests.delay_kit import A, NotingStore, World
from tms.block import decode, encode
from tms.delayed.entries import HEAD, TALLY, entry_key, entry_of, entry_value, id_of
from tms.errors import DataCorrupt
from tms.model import keys
from tms.model.delayed import DelayedId, Due
from tms.model.topic import Durability


def test_each_row_is_as_it_is_documented() -> None:
    world = World()
    (placed, _) = world.together({1: [b"1", b"2"], 0: [b"3"]}, Due(delay_ms=1_000), "token")
    assert world.delayed.cancel(A, placed.ids()[1])
    (name,) = [name for name in world.store.names("t") if keys.is_delayed_map(name)]
    rows = dict(world.store.open(name, create=False).scan(None, None, 1 << 20))
    due_ms = START_MS + 1_000
    for sequence, partition, values in ((1, 1, [b"1", b"2"]), (3, 0, [b"3"])):
        stored = rows.pop(struct.pack(">cQQ", b"d", due_ms, sequence))
        assert stored[:4] == struct.pack(">BBH", 1, 0, partition)
        assert decode(stored[4:]).values() == values
    token = blake2b(b"token", digest_size=16, person=b"tms-delayed").digest()
    assert rows == {
        struct.pack(">cQQ", b"x", due_ms, 2): struct.pack(">Q", 1),
        struct.pack(">cQ16s", b"a", START_MS, token): (
            b'[1700000001000,1,[[1,2],[0,1]],"f173366ab9f016b0c1d53ca9",1,0]'
        ),
        b"h": b"[1,1048577,[]]",
        b"n": b"[[0,0,0],2]",
    }


@pytest.mark.parametrize("shared", [False, True], ids=["alone", "shared"])
@pytest.mark.parametrize("durability", [Durability.WRITTEN, Durability.SYNCED])
def test_a_request_is_as_durable_as_its_entries_and_not_behind_them(
    shared: bool, durability: Durability
) -> None:
    store = NotingStore(shared)
    world = World(durability=durability, inner=store)
    world.later(b"1", delay_ms=1)
    store.noted.clear()
    world.later(b"2", delay_ms=1, token="t")
    assert store.noted == [(b"a", durability), *([(b"d", durability)] if shared else [])]


def test_what_was_synced_before_a_move_is_not_synced_again() -> None:
    store = NotingStore()
    world = World(durability=Durability.WRITTEN, inner=store)
    for _ in range(2):
        world.later(b"1", delay_ms=1)
    world.clock.pass_ms(1)
    stored = world.delayed._of(A).stored
    for expected in ([(b"n", Durability.SYNCED)], []):
        store.noted.clear()
        stored.make_durable()
        assert store.noted == expected


@pytest.mark.parametrize("key", [HEAD, TALLY])
def test_a_damaged_row_is_named(key: bytes) -> None:
    world = World(shared=True)
    world.later(b"1", delay_ms=1)
    (name,) = [name for name in world.store.names("t") if keys.is_delayed_map(name)]
    world.store.open(name, create=False).write([(key, b"{")], Durability.SYNCED)
    world.kill()
    calls = (lambda: world.delayed.info(A),) if key == TALLY else ()
    for call in (*calls, lambda: world.later(b"2", delay_ms=1)):
        with pytest.raises(DataCorrupt, match=f"record {key.decode()} is damaged"):
            call()


def test_an_entry_that_is_cut_off_or_of_another_version_is_damaged() -> None:
    key, value = entry_key(DelayedId(START_MS, 1)), entry_value(1, encode([b"1"]))
    assert entry_of(key, value).partition == 1
    for size in range(len(key)):
        with pytest.raises(DataCorrupt, match="of a delayed message is damaged"):
            id_of(key[:size])
    with pytest.raises(DataCorrupt, match=key.hex()):
        entry_of(key + b"0", value)
    for broken in (value[:15], b"\2" + value[1:]):
        with pytest.raises(DataCorrupt, match=f"The delayed message {key.hex()} is damaged"):
            entry_of(key, broken)
