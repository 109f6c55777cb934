"""Tables and regions through Thrift 2, as `tms hbase install` and `status` need them."""

import contextlib
from collections.abc import Iterator

import pytest

from integration.cluster import Endpoint
from tms.errors import ConfigError
from tms.runtime.clock import SystemClock
from tms.store.hbase import HBasePlace
from tms.store.hbase.admin import Admin, HBaseTable
from tms.store.hbase.rows import split_rows

MESSAGES = HBaseTable(
    "messages",
    {"tms.ttl": "86400000", "tms.isolation": "committed"},
    {"VERSIONS": "1", "COMPRESSION": "GZ"},
)


@pytest.fixture
def admin(hbase_url: str) -> Iterator[Admin]:
    with contextlib.closing(Admin(HBasePlace.parse(hbase_url), SystemClock())) as admin:
        yield admin


def test_a_namespace_is_made_once(hbase: Endpoint) -> None:
    with contextlib.closing(
        Admin(HBasePlace.parse(hbase.url("made_once")), SystemClock())
    ) as admin:
        assert admin.tables() == []
        assert admin.create_namespace()
        assert not admin.create_namespace()
        assert "made_once" in admin.namespaces()
    with hbase.connect() as gateway:
        gateway.drop_namespace("made_once")


def test_a_table_is_made_once_with_its_attributes_and_regions(admin: Admin) -> None:
    assert admin.create_table(MESSAGES, split_rows(4))
    assert not admin.create_table(MESSAGES, split_rows(4))
    assert admin.tables() == ["messages"]
    assert admin.available("messages")
    found = admin.table("messages")
    assert MESSAGES.attributes.items() <= found.attributes.items()
    assert MESSAGES.family_attributes.items() <= found.family_attributes.items()
    regions = admin.regions("messages")
    assert [(one.start, one.end) for one in regions] == [
        (b"", b"4000"),
        (b"4000", b"8000"),
        (b"8000", b"c000"),
        (b"c000", b""),
    ]
    assert len({one.encoded for one in regions}) == 4
    assert all(len(one.encoded) == 32 and one.server for one in regions)


def test_modifying_changes_what_is_named_and_keeps_the_family_s_other_settings(
    admin: Admin,
) -> None:
    admin.create_table(MESSAGES)
    wanted = HBaseTable("messages", {"tms.ttl": "1000"}, {"VERSIONS": "2"})
    assert admin.modify_table(wanted)
    assert not admin.modify_table(wanted)
    found = admin.table("messages")
    assert found.attributes["tms.ttl"] == "1000"
    assert "tms.isolation" not in found.attributes
    assert found.family_attributes["VERSIONS"] == "2"
    assert found.family_attributes["COMPRESSION"] == "GZ"


def test_a_coprocessor_that_is_not_there_is_refused_and_nothing_changes(admin: Admin) -> None:
    admin.create_table(MESSAGES)
    broken = "file:///nowhere/tms.jar|io.tms.hbase.RetentionObserver|1073741823|"
    with pytest.raises(Exception, match="nowhere"):
        admin.modify_table(HBaseTable("messages", {**MESSAGES.attributes, "coprocessor$1": broken}))
    assert "coprocessor$1" not in admin.table("messages").attributes
    assert admin.available("messages")


def test_tables_are_disabled_and_enabled(admin: Admin) -> None:
    admin.create_table(MESSAGES)
    assert not admin.enable("messages")
    assert admin.disable("messages")
    assert not admin.disable("messages")
    assert not admin.enabled("messages")
    assert admin.enable("messages")
    assert admin.enabled("messages")


def test_a_region_without_the_coprocessor_says_nothing(admin: Admin) -> None:
    admin.create_table(MESSAGES, split_rows(2))
    assert [admin.probe(one) for one in admin.regions("messages")] == [None, None]


def test_notes_are_kept_and_read_back(admin: Admin) -> None:
    admin.create_table(HBaseTable("metadata"))
    assert admin.config("install") is None
    admin.set_config("install", b'{"version":1}')
    admin.set_config("install", b'{"version":2}')
    assert admin.config("install") == b'{"version":2}'
    assert admin.region_notes() == {}


def test_a_table_that_is_missing_says_what_to_run(admin: Admin) -> None:
    for call in (
        lambda: admin.table("messages"),
        lambda: admin.config("install"),
        lambda: admin.enabled("messages"),
        lambda: admin.regions("messages"),
    ):
        with pytest.raises(ConfigError, match="tms hbase install"):
            call()
