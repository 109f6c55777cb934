"""Tephra's Thrift protocol: its bytes, and every method through a client made from the same IDL."""

import socket
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from thriftpy2.protocol import TBinaryProtocolFactory
from thriftpy2.rpc import client_context
from thriftpy2.thrift import TApplicationException
from thriftpy2.transport import TFramedTransportFactory

from tests.clocks import START_MS, ManualClock
from tests.http_kit import Served, serving
from tests.waiting import PATIENCE_S
from tms.block import decode, encode
from tms.compat.tephra.checking import DEPTH_MAX, check_message
from tms.compat.tephra.frames import FrameLimits
from tms.compat.tephra.handler import ThriftHandler
from tms.compat.tephra.messages import Messages, load_types, printable
from tms.engine.engine import Engine
from tms.errors import Malformed, StorageUnavailable
from tms.model.message import NewBlock, PartitionPosition
from tms.model.position import Position
from tms.model.snapshot import NONE_IN_PROGRESS
from tms.model.topic import TopicName, TopicSettings
from tms.runtime.clock import SystemClock
from tms.store.memory import MemoryStore

TYPES = load_types()
TOPIC = TopicName("default", "a")
NONE = NONE_IN_PROGRESS.to_bytes(8, "big").hex()


def message(name: str, arguments: str, kind: int = 1) -> bytes:
    """An encoded call: the arguments in hexadecimal, without the end of their struct."""
    head = bytes((0x80, 1, 0, kind)) + len(name).to_bytes(4, "big") + name.encode()
    return head + bytes.fromhex("00000007" + arguments + "00")


def text(value: str) -> str:
    return len(value).to_bytes(4, "big").hex() + value.encode().hex()


def long(value: int) -> str:
    return value.to_bytes(8, "big").hex()


class Bytes:
    """The service without a network, under a clock that stands still."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.engine = Engine(MemoryStore(), self.clock)
        self.ready = True
        transactions = self.engine.transactions
        self.handler = ThriftHandler(TYPES, lambda: transactions, self.clock, lambda: self.ready)
        self.answer = Messages(TYPES, self.handler).answer


@pytest.fixture
def service() -> Bytes:
    return Bytes()


# Bytes by hand


def test_a_start_in_bytes(service: Bytes) -> None:
    id = START_MS * 1_000_000
    empty = "0a00000000"
    assert service.answer(message("startShort", "")) == message(
        "startShort",
        f"0c0000 0a0001{long(id)} 0a0002{long(id - 1)} 0f0003{empty} 0f0004{empty} 0a0005{NONE}"
        f"080006 00000001 0a0007{long(id)} 0f0008{empty} 080009 00000001 00",
        2,
    )


def test_a_conflict_in_bytes(service: Bytes) -> None:
    loser = START_MS * 1_000_000
    service.answer(message("startShort", ""))
    service.answer(message("startShortClientId", "0b0001" + text("win")))
    key = "0b00000001 00000003 6b00ff"
    for name in ("canCommitOrThrow", "commitOrThrow"):
        second = f"0e0002{key}" if name[1] == "a" else f"0a0002{long(loser + 1)}"
        answer = service.answer(message(name, f"0a0001{long(loser + 1)}{second}"))
        assert answer == message(name, "", 2)
    answer = service.answer(message("canCommitOrThrow", f"0a0001{long(loser)}0e0002{key}"))
    assert answer == message(
        "canCommitOrThrow",
        f"0c0002 0a0001{long(loser)} 0b0002{text(chr(107) + chr(92) + 'x00' + chr(92) + 'xFF')}"
        f"0b0003{text('win')} 00",
        2,
    )


def test_an_unknown_method_in_bytes(service: Bytes) -> None:
    answer = service.answer(message("nope", "080001 00000000"))
    assert answer == message(
        "nope", f"0b0001{text('Invalid method name: ' + repr('nope'))}080002 00000001", 3
    )


def test_the_older_form_of_a_message_is_read_too(service: Bytes) -> None:
    old = bytes.fromhex(text("status") + "01" + "00000007" + "00")
    assert service.answer(old) == message("status", "0b0000" + text("OK"), 2)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        message("status", "", 2),
        message("status", "") + b"\0",
        message("s" * 300, ""),
        bytes.fromhex("80020001") + message("status", "")[4:],
        message("status", "0b0001 ffffffff"),
        message("status", "0f0001 0a 7fffffff"),
        message("status", "0f0001 01 7fffffff"),
        message("status", "0e0001 0c 7fffffff"),
        message("status", "0d0001 0b0c 7fffffff"),
        message("status", "120001 00000000"),
        message("status", "0c0001" * 60 + "00" * 60),
    ],
)
def test_what_is_no_message_is_refused(service: Bytes, raw: bytes) -> None:
    with pytest.raises(Malformed):
        service.answer(raw)


def test_fields_that_nobody_knows_are_skipped(service: Bytes) -> None:
    unknown = (
        "020009 01 030009 01 040009 0000000000000000 060009 0001 0d0009 0b08 00000001"
        "00000001 61 00000005 0f0009 0c 00000002 0200010100 00 0e0009 06 00000001 0001"
    )
    answer = service.answer(message("status", unknown))
    assert answer == message("status", "0b0000" + text("OK"), 2)
    nested = "0c0001" * (DEPTH_MAX - 1) + "00" * (DEPTH_MAX - 1)
    assert service.answer(message("status", nested)) == answer


def test_every_truncation_is_refused_and_flipped_bits_are_refused_or_answered(
    service: Bytes,
) -> None:
    """For any bytes, nothing beyond their end is read."""
    tx = f"0c0001 0a0001{long(START_MS * 1_000_000)} 0f0003 0a 00000001{NONE} 080006 00000001 00"
    whole = [
        message("canCommitTx", tx + "0e0002 0b 00000002 00000001 61 00000000"),
        message("startShortWithClientIdAndTimeOut", "0b0001" + text("me") + "080002 00000005"),
        message("truncateInvalidTx", f"0e0001 0a 00000001{NONE}"),
        message("checkpoint", tx),
    ]
    random = Random(1)
    for raw in whole:
        service.answer(raw)
        for end in range(len(raw)):
            with pytest.raises(Malformed):
                check_message(raw[:end])
        for _ in range(2_000):
            flipped = bytearray(raw)
            for _ in range(random.choice((1, 1, 2, 5))):
                flipped[random.randrange(len(raw))] ^= 1 << random.randrange(8)
            try:
                assert service.answer(bytes(flipped))[:2] == b"\x80\x01"
            except Malformed:
                continue


def test_a_key_is_shown_as_hadoop_does() -> None:
    """The expected texts are from `ChangeId.toString` of Tephra 0.16.1, for all bytes."""
    low, high = (
        "".join(f"\\x{byte:02X}" for byte in part) for part in (range(0x20), range(0x7F, 0x100))
    )
    ascii_text = "".join(map(chr, range(0x20, 0x7F))).replace("\\", r"\x5C")
    assert printable(bytes(range(256))) == low + ascii_text + high


def test_text_that_is_no_utf8_and_values_that_are_missing_are_answered(service: Bytes) -> None:
    answer = service.answer(message("startShortClientId", "0b0001 00000002 ff61"))
    assert b"startShortClientId" in answer and answer[3] == 2
    (began,) = service.engine.transactions.manager.state.open.values()
    assert began.began.client == "\ufffda"
    for name in ("commitTx", "abortTx", "checkpoint", "canCommitTx"):
        assert service.answer(message(name, ""))[3] == 3
    wrong = f"0c0001 0a0001{long(began.began.id)} 080006 00000009 00"
    assert service.answer(message("checkpoint", wrong))[3] == 3
    for name in ("startShortTimeout", "canCommitOrThrow", "commitOrThrow", "invalidateTx"):
        service.answer(message(name, ""))


def test_what_the_store_cannot_do_is_an_error_of_the_application(
    service: Bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise StorageUnavailable("The disk is away.")

    monkeypatch.setattr(service.engine.transactions.manager._journal._topic, "write", fail)
    assert service.answer(message("startShort", ""))[3] == 3
    monkeypatch.undo()
    assert service.answer(message("startShort", ""))[3] == 2


def test_an_error_that_nobody_expected_stays_in_the_log(
    service: Bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(service.engine.transactions.tephra, "start", fail)
    answer = service.answer(message("startShort", ""))
    assert answer[3] == 3 and b"secret" not in answer
    assert "tephra_failed" in caplog.text and "secret" in caplog.text


def test_the_status_is_that_of_the_service(service: Bytes) -> None:
    service.ready = False
    assert service.answer(message("status", "")).endswith(b"NOTOK\0")


# A client over the network


@pytest.fixture
def served() -> Iterator[Served]:
    with serving(tephra=FrameLimits(workers=4)) as running:
        running.service.engine.create_topic(TOPIC, TopicSettings(1))
        yield running


@pytest.fixture
def client(served: Served) -> Iterator[Any]:
    with connected(served) as found:
        yield found


def connected(served: Served) -> Any:
    """A client like Tephra's, except for the language."""
    assert served.tephra_address is not None
    return client_context(
        TYPES.TTransactionServer,
        *served.tephra_address,
        trans_factory=TFramedTransportFactory(),
        proto_factory=TBinaryProtocolFactory(),
        socket_timeout=20_000,
        connect_timeout=20_000,
    )


def publish_in(served: Served, pointer: int, value: bytes) -> None:
    block = NewBlock(0, encode([value]))
    served.service.engine.transactions.submit(TOPIC, [block], pointer).result(PATIENCE_S)


def read(served: Served) -> list[bytes | None]:
    at = [PartitionPosition(0, Position.earliest())]
    fetched = served.service.engine.fetch(TOPIC, at, 1 << 20)
    return [value for one in fetched.blocks for value in decode(one.block).values()]


def test_all_ways_to_start(client: Any, served: Served) -> None:
    now_ms = SystemClock().now_ms()
    long_one = client.startLong()
    assert long_one.type == TYPES.TTransactionType.LONG
    assert client.startLongClientId("batch").type == TYPES.TTransactionType.LONG
    started = [
        client.startShort(),
        client.startShortTimeout(7),
        client.startShortClientId("me"),
        client.startShortWithClientIdAndTimeOut("me", 7),
        client.startShortWithTimeout(7),
    ]
    ids = [one.transactionId for one in started]
    assert ids == sorted(set(ids)) and 0 <= ids[0] // 10**6 - now_ms < 60_000
    assert started[0].firstShort == NONE_IN_PROGRESS and started[-1].firstShort == ids[0]
    assert started[-1].inProgress[0] == long_one.transactionId
    found = served.service.engine.transactions.manager.state.open
    assert [found[id].began.client for id in ids] == ["unknown", "unknown", "me", "me", "unknown"]
    assert found[ids[3]].began.expires_ms - ids[3] // 10**6 in range(6_900, 7_100)


def test_a_time_out_that_is_none_is_an_illegal_argument(client: Any) -> None:
    for call in (
        lambda: client.startShortWithTimeout(-5),
        lambda: client.startShortWithClientIdAndTimeOut("me", -5),
    ):
        with pytest.raises(TYPES.TGenericException) as caught:
            call()
        assert caught.value.originalExceptionClass == "java.lang.IllegalArgumentException"
        assert caught.value.message == "timeout must be positive but is -5 seconds"
    with pytest.raises(TApplicationException, match="timeout must be positive"):
        client.startShortTimeout(-5)
    assert client.status() == "OK"


def test_a_commit_shows_what_was_published_with_the_write_pointer(
    client: Any, served: Served
) -> None:
    tx = client.startShort()
    publish_in(served, tx.writePointer, b"1")
    tx = client.checkpoint(tx)
    publish_in(served, tx.writePointer, b"2")
    assert read(served) == []
    assert client.canCommitTx(tx, {b"k"}).value is True
    assert client.commitTx(tx).value is True
    assert read(served) == [b"1", b"2"]


def test_an_abort_takes_back_what_was_published(client: Any, served: Served) -> None:
    tx = client.startShort()
    publish_in(served, tx.writePointer, b"1")
    client.abortTx(tx)
    client.abortTx(tx)
    assert read(served) == []
    assert client.startShort().invalids == []


def test_conflicts_are_told_by_false_or_by_an_exception(client: Any) -> None:
    losers = [client.startShort() for _ in range(3)]
    for one in losers[1:]:
        client.canCommitOrThrow(one.transactionId, {b"k\xff"})
    winner = client.startShortClientId("winner")
    client.canCommitOrThrow(winner.transactionId, {b"k\xff"})
    client.commitOrThrow(winner.transactionId, winner.writePointer)
    assert client.canCommitTx(losers[0], {b"k\xff"}).value is False
    assert client.commitTx(losers[1]).value is False
    for call in (
        lambda: client.commitOrThrow(losers[2].transactionId, losers[2].writePointer),
        lambda: client.canCommitOrThrow(losers[2].transactionId, {b"k\xff", b"other"}),
    ):
        with pytest.raises(TYPES.TTransactionConflictException) as caught:
            call()
        assert caught.value.transactionId == losers[2].transactionId
        assert caught.value.conflictingKey == r"k\xFF"
        assert caught.value.conflictingClient == "winner"
    assert client.commitTx(losers[2]).value is True  # without its changes
    first, second = client.startShort(), client.startShort()
    for one in (first, second):
        client.canCommitTx(one, {b"l"})
    client.commitTx(first)
    with pytest.raises(TYPES.TTransactionConflictException) as caught:
        client.commitOrThrow(second.transactionId, second.writePointer)
    assert caught.value.conflictingClient == "unknown"


def test_what_is_not_in_progress_is_told(client: Any) -> None:
    tx = client.startShort()
    client.commitTx(tx)
    for call in (
        lambda: client.commitTx(tx),
        lambda: client.canCommitTx(tx, set()),
        lambda: client.canCommitOrThrow(77, set()),
        lambda: client.commitOrThrow(77, 77),
        lambda: client.checkpoint(tx),
    ):
        with pytest.raises(TYPES.TTransactionNotInProgressException):
            call()
    assert client.invalidateTx(tx.transactionId) is False


def test_too_large_a_change_set_is_told_as_tephra_does(client: Any) -> None:
    tx = client.startShort()
    with pytest.raises(TYPES.TGenericException, match="Change set for transaction") as caught:
        client.canCommitOrThrow(tx.transactionId, {bytes(7 << 20)})
    assert caught.value.originalExceptionClass == "org.apache.tephra.TransactionSizeException"
    assert client.canCommitTx(tx, {bytes(7 << 20)}).value is False


def test_a_foreign_pointer_is_not_committed(client: Any) -> None:
    tx = client.startShort()
    with pytest.raises(TYPES.TGenericException, match="no write pointer"):
        client.commitOrThrow(tx.transactionId, tx.writePointer + 1)
    client.commitOrThrow(tx.transactionId, tx.writePointer)


def test_the_invalid_list(client: Any) -> None:
    busy = client.startShort()
    invalid = [client.startShort() for _ in range(3)]
    for one in invalid:
        assert client.invalidateTx(one.transactionId) is True
    assert client.invalidTxSize() == 3
    assert client.startShort().invalids == [one.transactionId for one in invalid]
    assert client.truncateInvalidTx({invalid[0].transactionId, 5}).value is True
    assert client.truncateInvalidTx({5}).value is False
    later_ms = busy.transactionId // 10**6 + 60_000
    with pytest.raises(TYPES.TInvalidTruncateTimeException, match=f"earlier than {later_ms} are"):
        client.truncateInvalidTxBefore(later_ms)
    assert client.truncateInvalidTxBefore(5).value is False
    client.resetState()
    assert client.invalidTxSize() == 0
    begun = client.startShort()
    assert (begun.readPointer, begun.invalids, begun.inProgress) == (0, [], [])
    with pytest.raises(TYPES.TTransactionNotInProgressException):
        client.commitTx(busy)


def test_a_snapshot_of_everything_and_the_rest(client: Any) -> None:
    client.startShort()
    snapshot = client.getSnapshot()
    assert isinstance(snapshot, bytes) and snapshot[0] == 8
    client.pruneNow()
    assert client.status() == "OK"


def test_an_unknown_method_leaves_the_connection_as_it_is(served: Served) -> None:
    assert served.tephra_address is not None
    with socket.create_connection(served.tephra_address, 20) as raw:
        for name, kind in (("nope", 3), ("status", 2)):
            body = message(name, "")
            raw.sendall(len(body).to_bytes(4, "big") + body)
            size = int.from_bytes(raw.recv(4, socket.MSG_WAITALL), "big")
            assert raw.recv(size, socket.MSG_WAITALL)[3] == kind


def test_malformed_bytes_end_their_connection_only(served: Served, client: Any) -> None:
    assert served.tephra_address is not None
    assert client.status() == "OK"
    with socket.create_connection(served.tephra_address, 20) as raw:
        raw.sendall(bytes.fromhex("00000004 deadbeef"))
        assert raw.recv(1) == b""
    assert client.status() == "OK"
