"""The rows of delayed messages byte by byte: what one version has stored the next one must find."""

import struct
from hashlib import blake2b

import pytest

from tests.clocks import START_MS
from tests.delay_kit import A, NotingStore, World
from tms.model import keys
from tms.model.block import decode
from tms.model.delayed import Due
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
            b'[1700000001000,1,[[1,2],[0,1]],"f173366ab9f016b0c1d53ca9",1]'
        ),
        b"h": b"[1,1048577]",
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
