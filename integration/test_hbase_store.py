"""The HBase engine on a real HBase: the contract of stores, the form of its rows, its behaviour
when servers and connections fail."""

import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from random import Random

import pytest

from integration.cluster import Endpoint, Standalone
from integration.install import install
from integration.thrift_proxy import Fault, ThriftProxy
from tests.contracts.store_contract import (
    ALL,
    SYNCED,
    WRITTEN,
    DurableStoreContract,
    rows_of,
    run_together,
)
from tms.errors import (
    ConfigError,
    DataCorrupt,
    Invalid,
    StorageUnavailable,
    TMSError,
    TooLarge,
)
from tms.model import keys
from tms.store.base import Store
from tms.store.hbase import HBaseStore, Limits
from tms.store.hbase.rows import rows_of as rows_in_hbase

REGIONS = 4
SEGMENT = "t0000002a/p00003/s00000001"
SEGMENT_ROW = b"d2000000002a000300000001"
START_MS = 1_700_000_000_000
QUICK = Limits(connect_s=2.0, call_s=4.0)


def key(number: int) -> bytes:
    return keys.block_key(START_MS + number, 0)


@pytest.fixture(scope="module")
def installed(hbase: Endpoint) -> Iterator[str]:
    """The URL of a namespace with TMS's tables, for all tests of this file."""
    url = hbase.url("store_tests")
    install(url, regions=REGIONS)
    yield url
    with hbase.connect() as gateway:
        gateway.drop_namespace("store_tests")


@pytest.fixture
def url(installed: str) -> str:
    """The URL of the installed namespace, without maps."""
    with contextlib.closing(HBaseStore(installed)) as store:
        for name in store.names(""):
            store.drop(name)
    return installed


@pytest.fixture
def store(url: str) -> Iterator[HBaseStore]:
    with contextlib.closing(HBaseStore(url)) as store:
        yield store


@pytest.fixture
def proxy(hbase: Endpoint) -> Iterator[ThriftProxy]:
    with ThriftProxy(hbase.port) as proxy:
        yield proxy


@pytest.fixture
def proxied(url: str, proxy: ThriftProxy) -> Iterator[HBaseStore]:
    """A store whose calls go through the proxy."""
    with contextlib.closing(HBaseStore(through(proxy), limits=QUICK)) as store:
        yield store


def through(proxy: ThriftProxy) -> str:
    return f"hbase://127.0.0.1:{proxy.port}/store_tests"


def row_of(name: str, key: bytes) -> bytes:
    return rows_in_hbase("store_tests", name).row(key)


class Segments:
    """A segment of its own for each test: keys of a map of blocks are written once."""

    number = 0

    @classmethod
    def next(cls) -> str:
        cls.number += 1
        return keys.segment_map(7, 0, cls.number)


class TestHBase(DurableStoreContract):
    random_operations = 200

    @pytest.fixture
    def reopen(self, url: str) -> Callable[[], Store]:
        return lambda: HBaseStore(url)


@pytest.mark.long
def test_a_map_agrees_with_a_dictionary_over_as_many_operations_as_elsewhere(url: str) -> None:
    contract = TestHBase()
    contract.random_operations = DurableStoreContract.random_operations
    contract.test_a_map_agrees_with_a_dictionary_over_random_operations(lambda: HBaseStore(url))


# The form of rows


def test_rows_of_messages_are_spelled_as_documented(store: HBaseStore, hbase: Endpoint) -> None:
    one = store.open(SEGMENT, create=True)
    one.write([(keys.block_key(START_MS, 0x12), b"block")], SYNCED)
    row = SEGMENT_ROW + b"0000018bcfe568000012"
    assert len(row) == 44
    with hbase.connect() as gateway:
        assert gateway.get("store_tests:messages", row) == {b"m:b": b"block"}


def test_rows_of_payloads_are_spelled_as_documented(store: HBaseStore, hbase: Endpoint) -> None:
    pointer = (START_MS + 5) * 1_000_000
    one = store.open(keys.payload_map(42, 3, pointer), create=True)
    one.write([(keys.payload_key(pointer, START_MS, 0x12), b"staged")], SYNCED)
    day, wrote = b"%08x" % (pointer // (86_400_000 * 1_000_000)), b"%016x" % pointer
    row = SEGMENT_ROW[:16] + day + wrote + b"0000018bcfe568000012"
    assert len(row) == 60
    with hbase.connect() as gateway:
        assert gateway.get("store_tests:payloads", row) == {b"m:b": b"staged"}


def test_records_and_names_are_readable_in_the_shell(store: HBaseStore, hbase: Endpoint) -> None:
    store.open("metadata", create=True).compare_and_set(b"topic/default/flights", None, b"{}")
    with hbase.connect() as gateway:
        found = gateway.scan("store_tests:metadata")
    assert found[b"metadata:topic/default/flights"][b"m:v"] == b"{}"
    assert b'"created_ms":' in found[b"!map/metadata"][b"m:v"]


def test_blocks_have_the_time_of_their_key_and_overwritten_ones_one_more(
    store: HBaseStore, hbase: Endpoint
) -> None:
    name = Segments.next()
    one = store.open(name, create=True)
    one.write([(key(0), b"a"), (key(1), b"b")], SYNCED)
    one.overwrite([(key(1), b"c")], SYNCED)
    with hbase.connect() as gateway:
        for number, timestamp in ((0, START_MS), (1, START_MS + 1 + 1)):
            get = hbase.types.TGet(row=row_of(name, key(number)))
            [cell] = gateway.call("get", b"store_tests:messages", get).columnValues
            assert cell.timestamp == timestamp


# Maps of blocks


def test_a_late_repeat_of_a_write_does_not_undo_what_came_after_it(store: HBaseStore) -> None:
    one = store.open(Segments.next(), create=True)
    one.write([(key(0), b"first"), (key(1), b"gone")], SYNCED)
    one.overwrite([(key(0), b"later")], SYNCED)
    one.delete([key(1)])
    one.write([(key(0), b"first"), (key(1), b"gone")], SYNCED)
    assert rows_of(one) == [(key(0), b"later")]


def test_a_block_may_be_overwritten_often_and_leaves_no_pieces_behind(
    store: HBaseStore, hbase: Endpoint
) -> None:
    name = Segments.next()
    one = store.open(name, create=True)
    key = keys.block_key(START_MS, 0x12)
    one.write([(key, Random(1).randbytes(20 << 20))], SYNCED)
    for size in (18 << 20, 9 << 20, 300, 2):
        value = Random(size).randbytes(size)
        one.overwrite([(key, value), (keys.block_key(START_MS, 0x99), b"not there")], SYNCED)
        assert rows_of(one) == [(key, value)]
    one.reclaim()
    with hbase.connect() as gateway:
        assert gateway.get("store_tests:messages", row_of(name, key)) == {b"m:b": value}
    one.delete([key])
    assert rows_of(one) == []


@pytest.mark.parametrize("size", [(8 << 20) - 1, 8 << 20, (8 << 20) + 1, 20 << 20])
def test_large_blocks_come_back_whole(store: HBaseStore, size: int) -> None:
    one = store.open(Segments.next(), create=True)
    value = Random(size).randbytes(1 << 20) * ((size >> 20) + 1)
    rows = [(key(0), b"small"), (key(1), value[:size]), (key(2), b"small")]
    one.write(rows, SYNCED)
    assert rows_of(one) == rows
    assert one.get(key(1)) == value[:size]
    assert one.scan(None, None, ALL, reverse=True) == rows[::-1]


def test_the_largest_block_comes_back_and_a_larger_one_is_refused(store: HBaseStore) -> None:
    one = store.open(Segments.next(), create=True)
    value = Random(1).randbytes(1 << 20) * (one.value_bytes_max >> 20)
    one.write([(key(0), value)], SYNCED)
    assert one.get(key(0)) == value
    with pytest.raises(TooLarge, match=str(one.value_bytes_max)):
        one.write([(key(1), value + b"x")], SYNCED)
    assert [found for found, _ in one.scan(None, None, ALL)] == [key(0)]


def test_a_key_of_another_length_is_refused(store: HBaseStore) -> None:
    one = store.open(Segments.next(), create=True)
    for call in (
        lambda: one.write([(b"short", b"v")], SYNCED),
        lambda: one.get(b"short"),
        lambda: one.delete([b"short"]),
        lambda: one.compare_and_set(key(0), None, b"v"),
    ):
        with pytest.raises(Invalid):
            call()


@pytest.mark.parametrize("reverse", [False, True])
def test_a_map_of_small_and_large_blocks_reads_the_same_whatever_pages_it_comes_in(
    url: str, reverse: bool
) -> None:
    random = Random(3)
    sizes = [random.choice([10, 1_000, 50_000, 2 << 20]) for _ in range(120)]
    rows = [
        (key(i), Random(i).randbytes(1_000) * (size // 1_000 + 1)) for i, size in enumerate(sizes)
    ]
    name = Segments.next()
    with contextlib.closing(HBaseStore(url)) as writer:
        writer.open(name, create=True).write(rows, SYNCED)
    expected = rows[::-1] if reverse else rows
    with contextlib.closing(HBaseStore(url)) as store:
        one = store.open(name, create=False)
        assert one.scan(None, None, ALL, reverse) == expected
        assert one.stored_bytes() == sum(len(k) + len(value) for k, value in rows)
        for bytes_max in (1, 5_000, 3 << 20):
            found = one.scan(None, None, bytes_max, reverse)
            assert found == expected[: len(found)]
            before = sum(len(k) + len(value) for k, value in found[:-1])
            assert before < bytes_max <= before + len(found[-1][0]) + len(found[-1][1])


def test_what_is_not_a_row_of_the_map_is_skipped_and_counted(
    store: HBaseStore, hbase: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    name = Segments.next()
    one = store.open(name, create=True)
    one.write([(key(0), b"a"), (key(9), b"b")], SYNCED)
    with hbase.connect() as gateway:
        prefix = row_of(name, key(0))[:24]
        foreign = {
            prefix + b"00": {b"m:b": b"too short"},
            prefix + key(1).hex().upper().encode()[:-1] + b"G": {b"m:b": b"no digits"},
            prefix + key(2).hex().encode() + b"00": {b"m:b": b"too long"},
            prefix + key(3).hex().encode(): {b"m:other": b"not our column"},
        }
        gateway.put("store_tests:messages", foreign)
    assert rows_of(one) == [(key(0), b"a"), (key(9), b"b")]
    assert one.get(key(3)) is None
    assert store.foreign_rows == 4
    assert caplog.text.count("foreign rows skipped") == 1


def test_a_block_without_all_of_its_pieces_is_damage(store: HBaseStore, hbase: Endpoint) -> None:
    one = store.open(SEGMENT, create=True)
    row = SEGMENT_ROW + key(0).hex().encode()
    with hbase.connect() as gateway:
        for cells in ({b"m:b01": b"tail"}, {b"m:b": b"short", b"m:b01": b"tail"}):
            types = hbase.types
            put = types.TPut(
                row=row,
                timestamp=START_MS,
                columnValues=[
                    types.TColumnValue(family=b"m", qualifier=name[2:], value=value)
                    for name, value in cells.items()
                ],
            )
            gateway.call("put", b"store_tests:messages", put)
            for read in (lambda: one.get(key(0)), lambda: rows_of(one)):
                with pytest.raises(DataCorrupt, match=row.decode()):
                    read()


def test_dropping_a_map_of_blocks_frees_its_name_and_creating_deletes_no_rows(
    store: HBaseStore, hbase: Endpoint
) -> None:
    name = Segments.next()
    one = store.open(name, create=True)
    one.write([(key(0), b"left behind")], SYNCED)
    store.drop(name)
    assert name not in store.names("")
    with hbase.connect() as gateway:
        left = gateway.get("store_tests:messages", row_of(name, key(0)))
    assert left == {b"m:b": b"left behind"}, "its rows are the coprocessor's to drop"
    again = store.open(name, create=True)  # they may belong to another process, which was quicker
    assert rows_of(again) == [(key(0), b"left behind")]


def test_a_dropped_map_of_records_loses_its_rows(store: HBaseStore, hbase: Endpoint) -> None:
    one = store.open("k/stock", create=True)
    one.write([(b"%04d" % i, b"v") for i in range(2_500)], SYNCED)
    store.drop("k/stock")
    with hbase.connect() as gateway:
        assert [*gateway.scan("store_tests:metadata")] == [b"!config/installed"]


# Owners that share the store


def test_of_two_stores_that_count_with_one_record_no_step_is_lost_nor_done_twice(
    url: str,
) -> None:
    with (
        contextlib.closing(HBaseStore(url)) as first,
        contextlib.closing(HBaseStore(url)) as second,
    ):
        first.open("metadata", create=True)
        taken: list[int] = []

        def count(store: HBaseStore) -> None:
            one = store.open("metadata", create=False)
            for _ in range(15):
                while True:
                    now = one.get(b"n")
                    number = int(now or 0) + 1
                    if one.compare_and_set(b"n", now, b"%d" % number):
                        taken.append(number)
                        break

        run_together([lambda: count(first), lambda: count(second), lambda: count(first)])
        assert sorted(taken) == list(range(1, 46))


def test_a_record_that_is_made_and_removed_all_the_time_is_never_hidden(store: HBaseStore) -> None:
    """A removal has a timestamp; a record made in the same millisecond must not vanish with it."""
    one = store.open("metadata", create=True)
    for number in range(100):
        value = b"%d" % number
        assert one.compare_and_set(b"lock", None, value)
        assert one.get(b"lock") == value
        assert one.compare_and_set(b"lock", value, None)
        assert one.get(b"lock") is None
    one.write([(b"lock", b"v")], SYNCED)
    one.delete([b"lock"])
    one.write([(b"lock", b"w")], SYNCED)
    assert one.get(b"lock") == b"w"


# Connections that fail


def test_connections_that_the_server_ended_are_replaced(
    proxied: HBaseStore, proxy: ThriftProxy
) -> None:
    one = proxied.open("metadata", create=True)
    for number in range(3):
        assert one.compare_and_set(b"k", b"%d" % number if number else None, b"%d" % (number + 1))
        proxy.end_connections()
    assert one.get(b"k") == b"3"


@pytest.mark.parametrize("fault", [Fault.LOSE_REQUEST, Fault.LOSE_ANSWER, Fault.HALF_ANSWER])
def test_what_can_be_repeated_is_repeated_and_stored_once(
    proxied: HBaseStore, proxy: ThriftProxy, fault: Fault
) -> None:
    one = proxied.open(Segments.next(), create=True)
    rows = [(key(i), b"%d" % i) for i in range(20)]
    for method, call in (
        ("putMultiple", lambda: one.write(rows, SYNCED)),
        ("putMultiple", lambda: one.overwrite(rows[:1], SYNCED)),
        ("deleteMultiple", lambda: one.delete([key(19)])),
        ("get", lambda: one.get(key(3))),
        ("getScannerResults", lambda: one.scan(None, None, ALL)),
    ):
        proxy.script(method, fault, fault)
        call()
        assert proxy.done, method
    assert rows_of(one) == rows[:19]


@pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, Fault.HALF_ANSWER])
def test_a_comparison_whose_answer_is_lost_is_looked_up(
    proxied: HBaseStore, proxy: ThriftProxy, fault: Fault
) -> None:
    one = proxied.open("metadata", create=True)
    proxy.script("checkAndPut", fault)
    assert one.compare_and_set(b"k", None, b"v")
    proxy.script("checkAndPut", fault)
    assert one.compare_and_set(b"k", b"v", b"w")
    assert one.get(b"k") == b"w"
    assert proxy.done


def test_a_comparison_whose_request_is_lost_fails_and_may_still_land(
    proxied: HBaseStore, proxy: ThriftProxy
) -> None:
    one = proxied.open("metadata", create=True)
    assert one.compare_and_set(b"k", None, b"v")
    proxy.script("checkAndPut", Fault.LATER)
    with pytest.raises(StorageUnavailable, match="may still be"):
        one.compare_and_set(b"k", b"v", b"w")
    assert one.get(b"k") == b"v"
    proxy.deliver()
    assert one.get(b"k") == b"w"
    proxy.script("checkAndPut", Fault.LATER)
    with pytest.raises(StorageUnavailable):
        one.compare_and_set(b"k", b"w", b"x")
    assert one.compare_and_set(b"k", b"w", b"y")
    assert one.compare_and_set(b"k", b"y", b"w")
    proxy.deliver()
    assert one.get(b"k") == b"w", "a late comparison took a value for the one it had seen"


def test_a_removal_whose_answer_is_lost_is_not_taken_for_one_s_own(
    proxied: HBaseStore, proxy: ThriftProxy
) -> None:
    one = proxied.open("metadata", create=True)
    assert one.compare_and_set(b"k", None, b"v")
    proxy.script("checkAndDelete", Fault.LOSE_ANSWER)
    with pytest.raises(StorageUnavailable):
        one.compare_and_set(b"k", b"v", None)
    assert one.get(b"k") is None
    assert proxy.calls["checkAndDelete"] == 1


def test_a_failed_write_lands_with_recover_and_not_later(
    proxied: HBaseStore, proxy: ThriftProxy
) -> None:
    one = proxied.open(Segments.next(), create=True)
    proxy.script("putMultiple", Fault.LATER, *[Fault.LOSE_REQUEST] * 200)
    with pytest.raises(StorageUnavailable):
        one.write([(key(0), b"a"), (key(1), b"b")], WRITTEN)
    with pytest.raises(StorageUnavailable):
        one.write([(key(2), b"c")], WRITTEN)
    assert rows_of(one) == []
    proxy.forget()
    one.recover()
    assert rows_of(one) == [(key(0), b"a"), (key(1), b"b")]
    one.overwrite([(key(0), b"z")], SYNCED)
    one.write([(key(2), b"c")], SYNCED)
    proxy.deliver()
    assert rows_of(one) == [(key(0), b"z"), (key(1), b"b"), (key(2), b"c")]


@pytest.mark.parametrize("fault", [Fault.SWALLOW_ANSWER, Fault.TRICKLE])
def test_a_call_ends_at_its_deadline_however_the_server_keeps_silent(
    url: str, proxy: ThriftProxy, fault: Fault
) -> None:
    limits = Limits(connect_s=1.0, call_s=1.5)
    with contextlib.closing(HBaseStore(through(proxy), limits=limits)) as store:
        one = store.open("metadata", create=True)
        one.write([(b"k", bytes(1_000))], SYNCED)
        proxy.script("get", *[fault] * 5)
        began_s = time.monotonic()
        with pytest.raises(StorageUnavailable, match="did not answer get in time"):
            one.get(b"k")
        assert 1.0 < time.monotonic() - began_s < 5.0
        assert store.healthy() is not None
        proxy.forget()
        assert one.get(b"k") == bytes(1_000)
        assert store.healthy() is None


def test_a_forked_process_makes_connections_of_its_own(url: str) -> None:
    with contextlib.closing(HBaseStore(url)) as store:
        store.open("metadata", create=True).compare_and_set(b"k", None, b"v")
    done = subprocess.run(
        [sys.executable, "-c", FORK_AND_READ, url],
        capture_output=True,
        timeout=60,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert done.stdout == b"child\nparent\n", done.stderr.decode()


FORK_AND_READ = """
import os, sys
from tms.store.hbase import HBaseStore
store = HBaseStore(sys.argv[1])
one = store.open("metadata", create=False)
assert one.get(b"k") == b"v"
child = os.fork()
if child:
    assert os.waitpid(child, 0)[1] == 0
before = store._pool.connections_made
assert one.get(b"k") == b"v"
assert store._pool.connections_made == before + (not child), "whose connection was used?"
os.write(1, b"parent\\n" if child else b"child\\n")
if not child:
    os._exit(0)
store.close()
"""


def test_a_server_that_is_away_is_said_in_time_and_noticed_when_it_is_back(
    url: str, hbase: Endpoint
) -> None:
    with ThriftProxy(hbase.port) as proxy:
        store = HBaseStore(through(proxy), limits=Limits(connect_s=0.5, call_s=1.0))
        port = proxy.port
    with pytest.raises(StorageUnavailable, match=f"127.0.0.1:{port} cannot be reached"):
        HBaseStore(f"hbase://127.0.0.1:{port}/store_tests", limits=Limits(0.5, 1.0))
    with pytest.raises(StorageUnavailable):
        store.names("")
    assert "cannot be reached" in (store.healthy() or "")
    with ThriftProxy(hbase.port, port):
        until(lambda: store.healthy() is None)
        store.close()


def test_of_several_servers_any_will_do(url: str, hbase: Endpoint) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = taken.getsockname()[1]
    place = f"hbase://127.0.0.1:{nobody},127.0.0.1:{hbase.port}/store_tests"
    for _ in range(4):
        with contextlib.closing(HBaseStore(place, limits=QUICK)) as store:
            assert store.names("") == []


def test_a_port_where_something_else_answers_is_a_wrong_address(url: str) -> None:
    def answer() -> None:
        client, _ = listener.accept()
        with client:
            client.recv(1 << 16)
            client.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        with pytest.raises(ConfigError, match="is not HBase's Thrift 2 server"):
            HBaseStore(f"hbase://127.0.0.1:{listener.getsockname()[1]}/x", limits=QUICK)
        thread.join(10)


def test_a_thrift_1_server_is_a_wrong_address(hbase: Endpoint) -> None:
    with pytest.raises(ConfigError, match="is not HBase's Thrift 2 server"):
        HBaseStore(f"hbase://127.0.0.1:{hbase.thrift1_port()}/store_tests", limits=QUICK)


def test_a_namespace_without_tables_says_what_to_run(hbase: Endpoint) -> None:
    with pytest.raises(ConfigError, match="tms hbase install"):
        HBaseStore(hbase.url("nobody_made_this"))


def test_what_was_acknowledged_survives_a_kill_of_the_thrift_server(own_hbase: Standalone) -> None:
    url = own_hbase.url("tms")
    install(url, regions=REGIONS)
    acknowledged: list[bytes] = []
    failed: list[TMSError] = []
    with contextlib.closing(HBaseStore(url, limits=Limits(connect_s=1.0, call_s=60.0))) as store:
        one = store.open(SEGMENT, create=True)
        many, killed = threading.Event(), threading.Event()

        def write() -> None:
            number = 0
            while number < 50 or not killed.is_set():
                try:
                    one.write([(key(number), b"%d" % number)], WRITTEN)
                    acknowledged.append(key(number))
                except TMSError as error:
                    failed.append(error)
                    return
                number += 1
                if number == 50:
                    many.set()

        writer = threading.Thread(target=write)
        writer.start()
        try:
            assert many.wait(60)
            own_hbase.thrift.kill()
            own_hbase.start()  # by this thread: its children end when it ends
        finally:
            killed.set()
            writer.join(120)
        assert not failed, "what can be repeated was not"
        assert len(acknowledged) > 50
        assert [found for found, _ in rows_of(one)] == acknowledged


def until(condition: Callable[[], bool]) -> None:
    """Wait for the effect of another thread."""
    deadline_s = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline_s, "waited in vain"
        time.sleep(0.02)
