"""Bodies of queues: received messages come through unchanged, and nothing is unpacked on the
way."""

import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tms import block
from tms.api import bodies, queues
from tms.block.received import Received, Slice
from tms.errors import BadBlock, DataCorrupt, Malformed, TMSError
from tms.model.ids import MessageId
from tms.model.queue import (
    QueueInfo,
    QueuePartition,
    QueueSettings,
    Token,
    TokenResult,
)
from tms.model.topic import Durability, TopicName

EPOCH = 7


def packed(count: int, size: int = 4, headers: bool = False, **more: Any) -> block.Columns:
    values = [b"%0*d" % (size, n) if n % 7 else None for n in range(count)]
    keys = [b"k%d" % n if n % 2 else None for n in range(count)]
    given = [{"n": b"%d" % n} if n % 3 else None for n in range(count)] if headers else None
    return block.decode(block.encode(values, keys, given, **more))


def sliced(columns: block.Columns, start: int, stop: int, deliveries: int = 1) -> Slice:
    id = MessageId(1_700_000_000_000, start)
    return Slice(3, 1_000 + start, id, deliveries, columns.slice(start, stop))


def through(received: Received) -> Received:
    return queues.decode_received(b"".join(queues.encode_received(received)))


def test_what_is_received_comes_through_whole() -> None:
    columns, other = packed(10, headers=True), packed(3)
    received = Received(
        EPOCH, (sliced(columns, 0, 4), sliced(columns, 4, 10, 2), sliced(other, 1, 3))
    )
    assert through(received).messages("t") == received.messages("t")
    assert through(received).tokens() == received.tokens()


def test_nothing_received_is_a_body_too() -> None:
    assert through(Received(EPOCH)) == Received(EPOCH)


def test_a_block_of_which_much_is_asked_goes_out_once_and_as_it_is() -> None:
    columns = packed(1_000, 100)
    received = Received(EPOCH, (sliced(columns, 0, 400), sliced(columns, 500, 1_000, 2)))
    chunks = queues.encode_received(received)
    assert any(chunk is columns.origin[0] for chunk in chunks)
    assert sum(map(len, chunks)) < len(columns.origin[0]) + 1_000
    assert through(received).messages("t") == received.messages("t")


def test_a_few_messages_of_a_large_block_cost_a_few() -> None:
    columns = packed(10_000, 100, headers=True)
    some = (sliced(columns, 10, 20), sliced(columns, 30, 31, 4), sliced(columns, 9_000, 9_100))
    body = b"".join(queues.encode_received(Received(EPOCH, some)))
    assert len(body) < 111 * 200 + 2_000
    assert queues.decode_received(body).messages("t") == Received(EPOCH, some).messages("t")


def test_a_compressed_block_comes_through() -> None:
    columns = packed(2_000, 50, compression=block.Compression.ZSTD)
    for some in ((0, 2_000), (5, 9)):
        received = Received(EPOCH, (sliced(columns, *some),))
        assert through(received).messages("t") == received.messages("t")


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 199), st.integers(1, 60)), max_size=12))
def test_any_slices_of_any_blocks_come_through(asked: list[tuple[int, int, int]]) -> None:
    columns = [packed(200, 200), packed(200, 4), packed(1)]
    slices = [
        sliced(columns[which], start % columns[which].count, start % columns[which].count + count)
        for which, start, count in asked
    ]
    received = Received(EPOCH, tuple(one for one in slices if one.columns.count))
    assert through(received).messages("t") == received.messages("t")


def test_every_truncation_of_a_body_is_refused() -> None:
    body = b"".join(queues.encode_received(Received(EPOCH, (sliced(packed(3), 0, 3),))))
    for length in range(len(body)):
        with pytest.raises((Malformed, BadBlock, DataCorrupt)):
            queues.decode_received(body[:length])


@pytest.mark.parametrize(
    "part",
    [
        [0, 0, "00" * 20, 1, 1, 0, 1],  # there is one block
        [0, 0, "00" * 20, 1, -1, 0, 1],
        [0, 0, "00" * 20, 1, 0, 0, 4],  # of three messages
        [0, 0, "00" * 20, 1, 0, 2, 2],
        [0, 0, "00" * 20, 1, 0, -1, 1],
        [0, 0, "00" * 20, 1, 0, 0, 0],
        [0, 0, "no id", 1, 0, 0, 1],
        [0, 0, "00" * 20, 1, 0, 0],
    ],
)
def test_a_head_that_names_what_is_not_there_is_refused(part: list[object]) -> None:
    head = json.dumps({"epoch": 1, "slices": [part]}).encode()
    frames = list(bodies.frames([queues.NewBlock(0, packed(3).origin[0])]))
    with pytest.raises(Malformed):
        queues.decode_received(struct.pack(">I", len(head)) + head + b"".join(frames))


def test_json_has_each_message_with_its_token_and_tokens_for_all() -> None:
    columns = packed(4)
    received = Received(
        EPOCH, (sliced(columns, 0, 2), sliced(columns, 2, 3), sliced(columns, 3, 4, 2))
    )
    found = json.loads(queues.received_json(received))
    assert [one["offset"] for one in found["messages"]] == [1_000, 1_001, 1_002, 1_003]
    assert found["messages"][1] == {
        "partition": 3,
        "id": str(MessageId(1_700_000_000_000, 1)),
        "offset": 1_001,
        "timestamp_ms": 1_700_000_000_000,
        "key": "k1",
        "value": "0001",
        "headers": {},
        "encoding": "utf-8",
        "deliveries": 1,
        "token": str(Token(3, 1_001, 1, EPOCH)),
    }
    assert found["tokens"] == [str(Token(3, 1_000, 1, EPOCH, 3)), str(Token(3, 1_003, 2, EPOCH))]


def test_json_shows_what_is_no_text_as_base64() -> None:
    columns = block.decode(block.encode([b"\xff"], [b"k"]))
    found = json.loads(queues.received_json(Received(EPOCH, (sliced(columns, 0, 1),))))
    assert found["messages"][0]["encoding"] == "base64"
    assert (found["messages"][0]["key"], found["messages"][0]["value"]) == ("aw==", "/w==")


def test_a_queue_comes_through_whole() -> None:
    settings = QueueSettings(lease_s=2, ordered_by="key", durability=Durability.WRITTEN)
    counts = range(1, 10)
    info = QueueInfo(
        "workers",
        TopicName("team", "jobs"),
        settings,
        123,
        *counts,
        partitions=(QueuePartition(0, 1, 2, 3), QueuePartition(1, 4, 5, 6)),
    )
    body = bodies.encode(queues.QUEUE.encode(info))
    assert queues.QUEUE.decode(bodies.decode(body, queues.QueueBody)) == info
    assert json.loads(body)["dead_letter"] == "team:jobs-workers-dead"


def test_settings_come_through_whole_and_what_is_left_out_has_its_default() -> None:
    settings = QueueSettings(lease_s=0.25, jitter=0, durability=Durability.NONE, start="latest")
    body = bodies.encode(settings)
    assert queues.NEW_QUEUE.decode(bodies.decode(body, queues.QueueSettingsBody)) == settings
    assert (
        queues.NEW_QUEUE.decode(bodies.decode(b"{}", queues.QueueSettingsBody)) == QueueSettings()
    )
    some = bodies.decode(b'{"lease_s": 5, "durability": null}', queues.QueueSettingsBody)
    assert queues.QUEUE_CHANGES.decode(some) == {"lease_s": 5, "durability": None}


@pytest.mark.parametrize(
    "body",
    [
        {"lease_s": 0},
        {"lease_s": 43_201},
        {"deliveries_max": 256},
        {"backoff_max_s": -1},
        {"jitter": 1.1},
        {"dead_letter": "a/b"},
        {"dead_letter": "system:mine"},
        {"ordered_by": "value"},
        {"start": "yesterday"},
        {"outstanding_max": 0},
        {"durability": "often"},
    ],
)
def test_settings_that_are_none_are_refused(body: dict[str, object]) -> None:
    with pytest.raises(TMSError):
        queues.NEW_QUEUE.decode(bodies.decode(json.dumps(body).encode(), queues.QueueSettingsBody))


def test_the_answer_to_tokens_comes_through() -> None:
    result = TokenResult(3, ("a",))
    body = bodies.encode(queues.TOKEN_RESULT.encode(result))
    assert queues.TOKEN_RESULT.decode(bodies.decode(body, queues.TokensBody)) == result
