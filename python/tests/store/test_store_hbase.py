"""The HBase engine without HBase: rows, addresses, and failing calls."""

from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from tests.clocks import ManualClock
from tests.contracts.store_contract import ALL, SYNCED, WRITTEN, rows_of
from tests.fake_hbase import FakeHBase
from tms.errors import ConfigError, DataCorrupt, Invalid, StorageUnavailable, TMSError
from tms.model import keys
from tms.store.hbase import HBasePlace, connection
from tms.store.hbase.blocks import NOTE_S, UNSYNCED_BYTES_MAX, BlockMap, NotedMap
from tms.store.hbase.connection import types
from tms.store.hbase.pool import Pool
from tms.store.hbase.records import RecordMap
from tms.store.hbase.rows import (
    BlockRows,
    RecordRows,
    block_of,
    pieces,
    salt,
    split_rows,
)
from tms.store.hbase.rows import (
    rows_of as rows_in_hbase,
)
from tms.store.hbase.scanning import PAGE_BYTES

SEGMENT = "t0000002a/p00003/s00000001"
NAME_ROW = b"!map/" + SEGMENT.encode()
NOTE = b'{"created_ms":1,"row_bytes_max":16384}'
START_MS = 1_700_000_000_000
MIB = 1 << 20


@pytest.fixture
def hbase() -> FakeHBase:
    return FakeHBase()


def key(number: int) -> bytes:
    return keys.block_key(START_MS + number, 0)


def row(number: int) -> bytes:
    return b"d2000000002a000300000001" + key(number).hex().encode()


def numbers(puts: list[tuple[bytes, bool]]) -> list[tuple[int, bool]]:
    return [(int(r[24:40], 16) - START_MS, synced) for r, synced in puts]


def segment(hbase: FakeHBase, created: bool = True, clock: ManualClock | None = None) -> BlockMap:
    pool = cast(Pool, hbase)
    names = RecordMap(pool, RecordRows(b"tms:metadata", b"!map/"))
    if created:
        names.write([(SEGMENT.encode(), NOTE)], SYNCED)
    note = names.get(SEGMENT.encode())
    assert note is not None
    rows = rows_in_hbase("tms", SEGMENT)
    assert isinstance(rows, BlockRows)
    one = BlockMap(
        pool, rows, NotedMap(names, SEGMENT.encode(), note), clock or ManualClock(), created
    )
    hbase.called.clear()
    return one


def records(hbase: FakeHBase) -> RecordMap:
    rows = rows_in_hbase("tms", "metadata")
    assert isinstance(rows, RecordRows)
    return RecordMap(cast(Pool, hbase), rows)


# Rows


def test_rows_of_blocks_are_hexadecimal_and_of_fixed_width() -> None:
    messages = rows_in_hbase("tms", SEGMENT)
    assert messages.table == b"tms:messages"
    one = messages.row(keys.block_key(START_MS, 0x1234))
    assert one == b"d2000000002a0003000000010000018bcfe568001234"
    assert len(one) == 44
    assert messages.key(one) == keys.block_key(START_MS, 0x1234)
    payloads = rows_in_hbase("other", "t0000002a/p00003/y00019675")
    assert payloads.table == b"other:payloads"
    pointer = START_MS * 1_000_000
    one = payloads.row(keys.payload_key(pointer, START_MS, 7))
    assert one == b"d2000000002a000300004cdb" + b"%016x" % pointer + b"0000018bcfe568000007"
    assert len(one) == 60


def test_rows_of_records_are_the_map_a_colon_and_the_key() -> None:
    for name in ("metadata", "k/stock", "t0000002a/p00003", "t0000002a/p00003/x00000001"):
        rows = rows_in_hbase("tms", name)
        assert rows.table == b"tms:metadata"
        assert rows.row(b"a:\xff") == name.encode() + b":a:\xff"
        assert rows.key(name.encode() + b":a:\xff") == b"a:\xff"
        assert rows.key(name.encode() + b":") is None
        assert rows.key(b"another:a") is None


def test_the_salt_is_the_upper_half_of_the_crc_of_uid_and_partition() -> None:
    def crc(raw: bytes) -> int:
        state = 0xFFFFFFFF
        for byte in raw:
            state ^= byte
            for _ in range(8):
                state = (state >> 1) ^ (0x82F63B78 if state & 1 else 0)
        return state ^ 0xFFFFFFFF

    for uid, partition in ((0, 0), (42, 3), (2**32 - 1, 1_023)):
        raw = uid.to_bytes(4, "big") + partition.to_bytes(2, "big")
        assert salt(uid, partition) == f"{crc(raw) >> 16:04x}"


def test_ranges_of_keys_are_ranges_of_rows() -> None:
    random = Random(5)
    for name, size in ((SEGMENT, 10), ("metadata", 3)):
        rows = rows_in_hbase("tms", name)
        some = sorted(random.randbytes(size) for _ in range(200))
        assert [rows.row(one) for one in some] == sorted(rows.row(one) for one in some)
        for start, stop in ((None, None), (some[20], None), (None, some[90]), (some[20], some[90])):
            first, last = rows.range(start, stop)
            inside = [one for one in some if first <= rows.row(one) < last]
            assert inside == [
                one
                for one in some
                if (start is None or one >= start) and (stop is None or one < stop)
            ]
        first, last = rows.range(some[20] + b"\0", None)
        assert not first <= rows.row(some[20]) < last
        assert first <= rows.row(some[21]) < last


@pytest.mark.parametrize(
    "spelled",
    [
        b"",
        row(1)[:-1],
        row(1) + b"0",
        row(1).upper(),
        row(1)[:-1] + b"g",
        row(1)[:-1] + b"\xff",
        b"d201" + row(1)[4:],
    ],
)
def test_a_row_that_is_spelled_otherwise_is_none_of_the_map(spelled: bytes) -> None:
    assert rows_in_hbase("tms", SEGMENT).key(spelled) is None
    assert rows_in_hbase("tms", SEGMENT).key(row(1)) == key(1)


def test_a_partition_beyond_what_four_digits_hold_is_refused() -> None:
    rows_in_hbase("tms", "t00000001/p65535/s00000000")
    with pytest.raises(Invalid):
        rows_in_hbase("tms", "t00000001/p65536/s00000000")


def test_tables_are_split_evenly() -> None:
    assert split_rows(1) == []
    assert split_rows(4) == [b"4000", b"8000", b"c000"]
    assert len(split_rows(16)) == 15
    assert split_rows(3) == [b"5555", b"aaaa"]


@pytest.mark.parametrize("size", [0, 1, PAGE_BYTES - 1, PAGE_BYTES, PAGE_BYTES + 1, 20 * MIB])
def test_a_block_comes_back_from_its_pieces(size: int) -> None:
    value = Random(1).randbytes(MIB) * 20
    cells = [
        types().TColumnValue(family=b"m", qualifier=name, value=part, timestamp=7)
        for name, part in pieces(value[:size])
    ]
    assert [cell.qualifier for cell in cells] == [b"b", b"b01", b"b02"][
        : max(1, -(-size // PAGE_BYTES))
    ]
    assert block_of(b"row", cells) == (value[:size], 7)
    if len(cells) > 1:
        for lost in range(len(cells) - 1):
            with pytest.raises(DataCorrupt):
                block_of(b"row", cells[:lost] + cells[lost + 1 :])
        cells[-1].timestamp = 6  # left from before the overwriting
        assert block_of(b"row", cells) == (value[: PAGE_BYTES * (len(cells) - 1)], 7)


# Addresses


@pytest.mark.parametrize(
    ("url", "servers", "namespace"),
    [
        ("hbase://h", [("h", 9090)], "tms"),
        ("hbase://h:1/", [("h", 1)], "tms"),
        ("hbase://h:1/n_1", [("h", 1)], "n_1"),
        ("hbase://h1:1,h2,10.0.0.1:3/n", [("h1", 1), ("h2", 9090), ("10.0.0.1", 3)], "n"),
        ("hbase://[::1]:5/n", [("::1", 5)], "n"),
    ],
)
def test_an_address_names_servers_and_a_namespace(
    url: str, servers: list[tuple[str, int]], namespace: str
) -> None:
    place = HBasePlace.parse(url)
    assert (list(place.servers), place.namespace) == (servers, namespace)
    assert HBasePlace.parse(str(place)) == place


@pytest.mark.parametrize(
    "url",
    ["", "h:1", "hbase://", "hbase:///n", "hbase://h:0", "hbase://h:65536", "hbase://h:x",
     "hbase://h,/n", "hbase://h/a/b", "hbase://h/a-b", "http://h:1/n", "hbase://u@h:1", "hbase://h/n?x"],
)  # fmt: skip
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="hbase://HOST:PORT/NAMESPACE"):
        HBasePlace.parse(url)


# Blocks: syncing


def test_a_synced_write_syncs_what_was_only_written_before_it(hbase: FakeHBase) -> None:
    one = segment(hbase)
    one.write([(key(1), b"a")], WRITTEN)
    one.write([(key(2), b"b")], WRITTEN)
    assert numbers(hbase.puts()) == [(1, False), (2, False)]
    one.write([(key(3), b"c")], SYNCED)
    assert numbers(hbase.puts()) == [(1, True), (2, True), (3, True)]
    one.write([], SYNCED)
    assert hbase.puts() == []
    one.write([(key(4), b"d")], WRITTEN)
    hbase.puts()
    one.write([], SYNCED)
    assert numbers(hbase.puts()) == [(4, True)]


def test_what_is_not_synced_stays_bounded(hbase: FakeHBase) -> None:
    one = segment(hbase)
    unsynced: dict[int, int] = {}
    for number in range(60):
        one.write([(key(number), bytes(100_000))], WRITTEN)
        for written, synced in numbers(hbase.puts()):
            unsynced[written] = 100_000
            if synced:
                del unsynced[written]
        assert sum(unsynced.values()) <= UNSYNCED_BYTES_MAX
    one.write([(key(99), bytes(UNSYNCED_BYTES_MAX))], WRITTEN)
    assert numbers(hbase.puts())[-1] == (99, True)


def test_whoever_opens_a_map_syncs_what_its_last_owner_may_not_have(hbase: FakeHBase) -> None:
    one = segment(hbase)
    for number in range(30):
        one.write([(key(number), bytes(100_000))], WRITTEN)
    unsynced: set[int] = set()
    for written, synced in numbers(hbase.puts()):
        unsynced = unsynced - {written} if synced else unsynced | {written}
    assert unsynced
    heir = segment(hbase, created=False)
    heir.write([(key(40), b"new")], SYNCED)
    again = numbers(hbase.puts())
    assert all(synced for _, synced in again)
    assert unsynced | {40} <= {number for number, _ in again}
    assert again == sorted(again)
    assert len(again) < 15, "more was written again than the bound says"
    heir.write([(key(41), b"new")], SYNCED)
    assert numbers(hbase.puts()) == [(41, True)]


# Blocks: failing


@pytest.mark.parametrize("done", [False, True])
def test_a_failed_write_is_there_after_recover_and_lands_no_later(
    hbase: FakeHBase, done: bool
) -> None:
    clock = ManualClock()
    one = segment(hbase, clock=clock)
    one.write([(key(0), b"before")], WRITTEN)
    hbase.fail("putMultiple", done=done)
    with pytest.raises(StorageUnavailable):
        one.write([(key(1), b"a"), (key(2), b"b")], WRITTEN)
    for change in (
        lambda: one.write([(key(3), b"c")], SYNCED),
        lambda: one.overwrite([(key(0), b"c")], SYNCED),
        lambda: one.delete([key(0)]),
    ):
        with pytest.raises(StorageUnavailable):
            change()
    assert one.get(key(0)) == b"before"
    one.recover()
    expected = [(key(0), b"before"), (key(1), b"a"), (key(2), b"b")]
    assert rows_of(one) == expected
    one.overwrite([(key(1), b"x")], SYNCED)
    one.delete([key(2)])
    hbase.deliver()
    assert rows_of(one) == [(key(0), b"before"), (key(1), b"x")]


def test_a_deleted_row_is_gone_also_when_it_had_been_overwritten(hbase: FakeHBase) -> None:
    one = segment(hbase)
    one.write([(key(1), b"a"), (key(2), b"b")], SYNCED)
    one.overwrite([(key(1), b"c")], SYNCED)
    one.delete([key(1)])
    assert rows_of(one) == [(key(2), b"b")]


def test_recover_is_tried_twice_a_second_at_most_and_says_why_it_fails(hbase: FakeHBase) -> None:
    clock = ManualClock()
    one = segment(hbase, clock=clock)
    hbase.fail("putMultiple", done=False)
    with pytest.raises(StorageUnavailable):
        one.write([(key(1), b"a")], WRITTEN)
    assert one.hopeless is None
    hbase.fail("putMultiple", done=False)
    hbase.called.clear()
    for _ in range(5):
        with pytest.raises(StorageUnavailable):
            one.recover()
    assert len(hbase.puts()) == 1
    assert one.hopeless is not None
    clock.pass_ms(500)
    one.recover()
    assert one.hopeless is None
    assert rows_of(one) == [(key(1), b"a")]


def test_a_reader_learns_that_another_process_writes_larger_rows(hbase: FakeHBase) -> None:
    clock = ManualClock()
    writer, reader = segment(hbase), segment(hbase, created=False, clock=clock)
    writer.write([(key(number), bytes(8_000)) for number in range(100)], SYNCED)
    assert len(rows_of(reader)) == 100
    writer.write([(key(number), bytes(MIB)) for number in range(100, 140)], SYNCED)
    clock.pass_ms(int(NOTE_S * 1_000))
    hbase.called.clear()
    found = reader.scan(key(100), None, 64 * MIB)
    assert len(found) == 40
    pages = [one.arguments for one in hbase.called if one.method == "getScannerResults"]
    assert all(count * MIB <= PAGE_BYTES for _, scan, count in pages if scan.filterString is None)


def test_the_note_allows_a_large_row_before_it_is_written(hbase: FakeHBase) -> None:
    one = segment(hbase)
    one.write([(key(1), bytes(MIB))], SYNCED)
    methods = [called.method for called in hbase.called]
    assert methods.index("checkAndPut") < methods.index("putMultiple")
    assert b'"row_bytes_max":1048576' in hbase.rows("tms:metadata")[NAME_ROW][b"v"]
    hbase.called.clear()
    one.write([(key(2), bytes(MIB))], SYNCED)
    assert [called.method for called in hbase.called] == ["putMultiple"]


def test_no_page_asks_for_more_than_its_rows_could_fill(hbase: FakeHBase) -> None:
    random = Random(9)
    writer = segment(hbase)
    for number in range(300):
        writer.write([(key(number), bytes(random.choice([10, 10, 10, 2 * MIB])))], SYNCED)
    for reader in (writer, segment(hbase, created=False)):
        hbase.called.clear()
        found = rows_of(reader)
        assert [one for one, _ in found] == [key(number) for number in range(300)]
        sizes = [len(value) for _, value in found]
        scans = [one.arguments for one in hbase.called if one.method == "getScannerResults"]
        at, pages = 0, 0
        for _, scan, count in scans:
            if scan.filterString is None:
                assert count <= 2 or sum(sizes[at : at + count]) <= PAGE_BYTES
                at, pages = at + count, pages + 1
        assert pages < 60, "a few large rows made all pages small"


# Records


def test_a_comparison_whose_answer_is_lost_is_known_by_its_own_mark(hbase: FakeHBase) -> None:
    one = records(hbase)
    hbase.fail("checkAndPut", done=True)
    assert one.compare_and_set(b"k", None, b"v")
    hbase.fail("checkAndPut", done=True)
    assert one.compare_and_set(b"k", b"v", b"w")
    assert one.get(b"k") == b"w"


def test_an_equal_value_of_another_process_is_not_taken_for_its_own(hbase: FakeHBase) -> None:
    """Two processes count: the second writes the number that the first one lost."""
    one, other = records(hbase), records(hbase)
    assert one.compare_and_set(b"n", None, b"1")
    hbase.fail("checkAndPut", done=False)
    attempt = hbase.attempt

    def attempt_then_other(method: str, *arguments: Any, **options: Any) -> Any:
        try:
            return attempt(method, *arguments, **options)
        except BaseException:
            hbase.attempt = attempt  # type: ignore[method-assign]
            assert other.compare_and_set(b"n", b"1", b"2")
            raise

    hbase.attempt = attempt_then_other  # type: ignore[method-assign]
    with pytest.raises(StorageUnavailable):
        one.compare_and_set(b"n", b"1", b"2")
    hbase.deliver()
    assert one.get(b"n") == b"2"


def test_a_comparison_that_hbase_repeated_by_itself_is_still_a_success(hbase: FakeHBase) -> None:
    one = records(hbase)
    hbase.fail("checkAndPut", done=True, said=True)
    assert one.compare_and_set(b"k", None, b"v")
    hbase.fail("checkAndDelete", done=True, said=True)
    with pytest.raises(StorageUnavailable):
        one.compare_and_set(b"k", b"v", None)
    assert one.get(b"k") is None


def test_a_late_comparison_does_not_take_a_value_that_came_back_for_the_one_it_saw(
    hbase: FakeHBase,
) -> None:
    one = records(hbase)
    assert one.compare_and_set(b"k", None, b"a")
    hbase.fail("checkAndPut", done=False)
    with pytest.raises(StorageUnavailable):
        one.compare_and_set(b"k", b"a", b"late")
    assert one.compare_and_set(b"k", b"a", b"b")
    assert one.compare_and_set(b"k", b"b", b"a")
    hbase.deliver()
    assert one.get(b"k") == b"a"


@pytest.mark.parametrize("by", ["compare_and_set", "delete"])
def test_a_late_removal_does_not_take_a_newer_record_away(hbase: FakeHBase, by: str) -> None:
    one = records(hbase)
    assert one.compare_and_set(b"k", None, b"a")
    method = "checkAndDelete" if by == "compare_and_set" else "deleteMultiple"
    hbase.fail(method, done=False)
    with pytest.raises(StorageUnavailable):
        if by == "delete":
            one.delete([b"k"])
        else:
            one.compare_and_set(b"k", b"a", None)
    assert one.compare_and_set(b"k", b"a", b"b")
    hbase.deliver()
    assert one.get(b"k") == b"b"


def test_a_record_that_is_hidden_by_a_clock_that_went_back_is_not_said_to_be_there(
    hbase: FakeHBase,
) -> None:
    one = records(hbase)
    assert one.compare_and_set(b"k", None, b"a")
    assert one.compare_and_set(b"k", b"a", None)
    hbase.clock.jump_ms(-1_000)
    with pytest.raises(StorageUnavailable):
        one.compare_and_set(b"k", None, b"b")
    hbase.clock.jump_ms(2_000)
    assert one.compare_and_set(b"k", None, b"c")
    assert one.get(b"k") == b"c"


def test_records_that_come_while_they_are_read_hide_no_others(hbase: FakeHBase) -> None:
    one = records(hbase)
    one.write([(b"%05d" % number, b"v") for number in range(0, 400, 2)], SYNCED)
    attempt = hbase.attempt
    late = iter(range(1, 400, 2))

    def attempt_after_another(method: str, *arguments: Any, **options: Any) -> Any:
        if method == "getScannerResults":
            put = connection.types().TPut(
                row=b"metadata:%05d" % next(late),
                columnValues=[types().TColumnValue(family=b"m", qualifier=b"v", value=b"v")],
            )
            attempt("putMultiple", b"tms:metadata", [put])
        return attempt(method, *arguments, **options)

    hbase.attempt = attempt_after_another  # type: ignore[method-assign]
    found = [k for k, _ in one.scan(None, None, ALL)]
    assert found == sorted(found)
    assert {b"%05d" % number for number in range(0, 400, 2)} <= set(found)


def test_a_few_records_are_read_in_two_calls_and_none_in_one(hbase: FakeHBase) -> None:
    one = records(hbase)
    assert one.scan(None, None, ALL) == []
    assert len(hbase.called) == 1
    one.write([(b"%d" % number, b"v") for number in range(10)], SYNCED)
    hbase.called.clear()
    assert len(one.scan(None, None, ALL)) == 10
    assert len(hbase.called) == 2


# Errors


@pytest.mark.parametrize(
    ("text", "expected", "again"),
    [
        ("tms:messages", ConfigError, False),
        ("org.apache.hadoop.hbase.TableNotFoundException: x", ConfigError, False),
        ("tms:messages is disabled.", StorageUnavailable, True),
        ("Failed 1 action: DSQuotaExceededException: 1 time", TMSError, False),
    ],
)
def test_what_hbase_says_becomes_an_error_of_tms(
    text: str, expected: type[TMSError], again: bool
) -> None:
    error = types().TIOError(message=f"{text}\n\tat java.lang.Thread", canRetry=True)
    failure = connection._declared("get", (b"tms:messages",), error)
    assert isinstance(failure.error, expected)
    assert failure.again is again
    assert "get of tms:messages" in failure.error.message
    assert "java.lang.Thread" not in failure.error.message


def test_the_idl_keeps_its_licence() -> None:
    text = (Path(connection.__file__).parent / "hbase.thrift").read_text()
    assert "Licensed to the Apache Software Foundation (ASF)" in text
