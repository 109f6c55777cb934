"""The rules of HBase's tables in Python agree with the cases; the Java coprocessor is held to the
same vectors."""

from collections import Counter

import pytest

from tests.hbase_cases import hbase, refused_rows, stores
from tests.hbase_kit import DROPS, message_row, payload_row, read_row
from tests.snapshot_cases import CASES
from tests.vectors_kit import load
from tms.errors import Malformed
from tms.model.snapshot import decode_snapshot
from tms.store.hbase.admin import HBaseTable


@pytest.mark.parametrize("store", stores(), ids=lambda store: store[0])
def test_a_row_becomes_what_its_case_says(store: tuple) -> None:
    _, records, cases = store
    assert [(case, records.judge(*case[:3])) for case in cases] == [
        (case, case[3]) for case in cases
    ]


def test_every_outcome_has_cases() -> None:
    outcomes = Counter(case["reason"] for store in hbase()["stores"] for case in store["cases"])
    assert {"kept", "unsure", "damaged", *DROPS} == set(outcomes)
    shown = {case["committed"] for store in hbase()["stores"] for case in store["cases"]}
    assert shown == {True, False, None}


def test_rows_are_read_back_and_sort_like_their_keys() -> None:
    for one in load("hbase")["rows"]:
        place = one["uid"], one["partition"]
        if one["table"] == "messages":
            row = message_row(*place, one["segment"], one["time_ms"], one["sequence"])
        else:
            row = payload_row(*place, one["pointer"], one["time_ms"], one["sequence"])
        assert row == one["row"]
        assert vars(read_row(one["table"], row)) == {
            name: one[name] for name in one if name not in ("table", "row")
        }
    keys = [(0, 0), (0, 65_535), (255, 9), (256, 0), (2**40, 1)]
    assert sorted(keys) == sorted(keys, key=lambda key: message_row(42, 3, 1, *key))


def test_a_tables_attributes_say_how_long_topics_without_a_retention_keep_messages() -> None:
    for one in load("hbase")["ttls"]:
        family = {} if one["family_ttl"] is None else {"TTL": one["family_ttl"]}
        assert HBaseTable("messages", one["attributes"], family).ttl_ms == one["ttl_ms"], one


@pytest.mark.parametrize(("table", "row"), refused_rows())
def test_what_is_no_row_of_a_table_is_refused(table: str, row: str) -> None:
    assert read_row(table, row) is None


def test_snapshots_of_the_vectors_say_what_they_show() -> None:
    for one in load("snapshots")["snapshots"]:
        snapshot = decode_snapshot(bytes.fromhex(one["hex"]))
        assert snapshot == CASES[one["name"]]
        for fate in ("visible", "skipped", "open"):
            assert {snapshot.fate(pointer).name.lower() for pointer in one[fate]} <= {fate}


@pytest.mark.parametrize("name", load("snapshots")["refused"])
def test_bytes_that_are_no_snapshot_are_refused(name: str) -> None:
    with pytest.raises(Malformed):
        decode_snapshot(bytes.fromhex(load("snapshots")["refused"][name]))
