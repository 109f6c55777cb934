"""`tms hbase install` on a real HBase: twice, interrupted anywhere, with a wrong jar, beside tables
of other programs."""

from pathlib import Path

import pytest

import tms
from integration.cluster import Endpoint
from integration.coprocessor import OBSERVER, changed, replaced
from integration.deploying import (
    Tms,
    admin,
    cli,
    descriptions,
    directory,
    installed,
    interrupted,
    jar,
    url,
)
from tms.store.hbase.admin import Admin, HBaseTable

__all__ = ["admin", "cli", "directory", "installed", "jar", "url"]  # fixtures


def test_installing_twice_changes_nothing(
    cli: Tms, admin: Admin, installed: str, jar: Path, directory: str
) -> None:
    before, note = descriptions(admin), admin.config("installed")
    (kept,) = Path(directory).iterdir()
    stat = kept.stat()
    code, again = cli("install", "--jar", str(jar), "--jar-directory", directory, "--regions", "2")
    assert (code, again["changed"], again["changes"]) == (0, False, [])
    assert cli("install", "--jar", str(jar))[1]["changed"] is False  # the directory is noted
    assert descriptions(admin) == before and admin.config("installed") == note
    assert (kept.stat().st_ino, kept.stat().st_mtime_ns) == (stat.st_ino, stat.st_mtime_ns)
    assert sorted(before) == ["messages", "metadata", "payloads"]
    assert [len(admin.regions(name)) for name in before] == [2, 1, 2]
    assert cli("status")[0] == 0


def test_an_install_that_died_anywhere_is_finished_by_the_next(
    cli: Tms, admin: Admin, jar: Path, directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["install", "--jar", str(jar), "--jar-directory", directory, "--regions", "2"]

    def prepare() -> None:
        for name in admin.tables():
            admin.disable(name)
            admin.drop_table(name)
        admin.drop_namespace()

    points = 0
    for _ in interrupted(cli, monkeypatch, prepare, *arguments):
        points += 1
        assert all(admin.enabled(name) for name in admin.tables())
        assert cli(*arguments)[0] == 0
        assert cli("status")[1]["healthy"] is True
    assert points == 5  # namespace, three tables, note


def test_tables_get_the_attributes_that_are_documented(
    cli: Tms, admin: Admin, jar: Path, directory: str
) -> None:
    arguments = ["install", "--jar", str(jar), "--jar-directory", directory, "--regions", "2"]
    assert cli(*arguments, "--ttl", "90d", "--refresh", "5s", "--isolation", "committed")[0] == 0
    found = descriptions(admin)
    messages = found["messages"]
    assert messages.attributes["tms.ttl"] == str(90 * 86_400_000)
    assert messages.attributes["tms.refresh.ms"] == "5000"
    assert messages.attributes["tms.isolation"] == "committed"
    assert messages.attributes["DURABILITY"] == "SYNC_WAL"
    for one in found.values():
        assert one.family_attributes["VERSIONS"] == "1"
        assert one.family_attributes["TTL"] == "2147483647"
    assert messages.family_attributes["BLOOMFILTER"] == "ROWPREFIX_FIXED_LENGTH"
    assert messages.family_configuration == {"RowPrefixBloomFilter.prefix_length": "24"}
    assert found["metadata"].family_attributes["IN_MEMORY"] == "true"
    assert cli(*arguments, "--ttl", "forever")[1]["changed"] is True
    attributes = admin.table("messages").attributes
    assert "tms.ttl" not in attributes and attributes["tms.refresh.ms"] == "5000"


def test_what_an_operator_changed_stays_and_what_tms_relies_on_is_mended(
    cli: Tms, admin: Admin, jar: Path, installed: str
) -> None:
    found = admin.table("messages")
    own = {"IS_META", "DURABILITY", "hbase.store.file-tracker.impl"}
    attributes = {name: value for name, value in found.attributes.items() if name not in own}
    admin.modify_table(
        HBaseTable(
            "messages", {**attributes, "their": "own"}, {"BLOCKSIZE": "131072", "TTL": "86400"}
        )
    )
    code, seen = cli("status")
    assert code == 1 and "TTL = 86400" in seen["findings"][0]["what"]
    assert cli("install", "--jar", str(jar))[0] == 0
    mended = admin.table("messages")
    assert mended.family_attributes["TTL"] == "2147483647"
    assert mended.family_attributes["BLOCKSIZE"] == "131072"
    assert mended.attributes["their"] == "own"
    assert cli("status")[0] == 0


def test_a_store_without_the_coprocessor_works_and_gets_it_later(
    cli: Tms, url: str, jar: Path, directory: str
) -> None:
    assert cli("install", "--no-coprocessor", "--regions", "1")[0] == 0
    with tms.open(url) as bus:
        bus.create_topic("t")
        bus.publish("t", b"early")
    code, seen = cli("status")
    assert code == 0 and "no coprocessor" in seen["findings"][0]["what"]
    assert cli("install", "--jar", str(jar), "--jar-directory", directory)[0] == 0
    assert cli("status")[0] == 0
    with tms.open(url) as bus:
        read = [one.value for one in bus.consumer("t", start="earliest", stop_at_end=True)]
    assert read == [b"early"]


def test_a_wrong_jar_is_refused_and_nothing_is_made(
    cli: Tms, admin: Admin, jar: Path, directory: str, tmp_path: Path
) -> None:
    no_jar = tmp_path / "no.jar"
    no_jar.write_bytes(b"PK")
    wrong = {
        "is no jar": no_jar,
        "no class": changed(
            jar, tmp_path / "empty.jar", lambda name, raw: None if name == OBSERVER else raw
        ),
        "TMS 9.9.9": changed(
            jar,
            tmp_path / "other.jar",
            replaced("META-INF/MANIFEST.MF", b"Version: 0.1.0", b"Version: 9.9.9"),
        ),
        "cannot be read": tmp_path / "nowhere.jar",
        "HBase refuses": changed(
            jar,
            tmp_path / "renamed.jar",
            replaced(OBSERVER, b"RetentionObserver", b"RetentionObservex"),
        ),
    }
    for text, path in wrong.items():
        code, said = cli("install", "--jar", str(path), "--jar-directory", directory)
        assert code == 78 and text in said["error"]["message"], said
        assert said["error"]["next"]
        assert admin.place.namespace not in admin.namespaces()


def test_a_namespace_of_something_else_is_left_alone(
    cli: Tms, admin: Admin, hbase: Endpoint, url: str
) -> None:
    admin.create_namespace()
    with hbase.connect() as gateway:
        gateway.create_table(f"{admin.place.namespace}:orders", "f")
        code, said = cli("install", "--no-coprocessor")
        assert code == 4 and "orders" in said["error"]["message"]
        gateway.create_table(f"{admin.place.namespace}:messages", "f")
        assert cli("install", "--no-coprocessor")[0] == 4
        assert cli("uninstall", "--drop-tables", "--yes")[1]["changed"] is False
    assert admin.tables() == ["messages", "orders"]


def test_rows_in_files_are_found_through_the_filter_of_their_prefix(
    cli: Tms, hbase: Endpoint, url: str, jar: Path, installed: str
) -> None:
    table = f"{url.rpartition('/')[2]}:messages"
    expected: list[bytes] = []
    for turn in range(4):
        with tms.open(url) as bus:  # finds its ends in files, reading backwards
            if turn == 0:
                bus.create_topic("t", partitions=3)
            for number in range(9):
                expected.append(b"%d/%d" % (turn, number))
                bus.publish("t", expected[-1], partition=number % 3)
        hbase.admin().run("flush", table)
    files = hbase.admin().run("files", table)
    assert sum(map(int, files[1::2])) > 3, files
    with tms.open(url) as bus:
        read = [one.value for one in bus.consumer("t", start="earliest", stop_at_end=True)]
        assert sorted(filter(None, read)) == sorted(expected)
        hbase.admin().run("major_compact", table)
        again = [one.value for one in bus.consumer("t", start="earliest", stop_at_end=True)]
        assert sorted(filter(None, again)) == sorted(expected)
