"""`tms hbase upgrade`, `uninstall`, `status` and `cleanup` on a real HBase."""

import os
import shutil
import stat
import time
from pathlib import Path

import pytest

import tms
from integration.cluster import Endpoint, Standalone
from integration.coprocessor import OBSERVER, PROBE, changed, replaced
from integration.deploying import (
    Tms,
    admin,
    cli,
    cli_of,
    descriptions,
    directory,
    installed,
    interrupted,
    jar,
    paths,
    refresh_soon,
    url,
)
from tms.client.client import Bus
from tms.store.hbase.admin import Admin

__all__ = ["admin", "cli", "directory", "installed", "jar", "url"]  # fixtures


def test_an_upgrade_reopens_the_tables_with_the_new_jar_and_goes_back(
    cli: Tms, admin: Admin, installed: str, jar: Path, tmp_path: Path
) -> None:
    new = changed(jar, tmp_path / "new.jar")
    code, dry = cli("upgrade", "--jar", str(new), "--dry-run")
    assert (code, dry["changed"]) == (0, False) and paths(admin) == {installed}
    code, made = cli("upgrade", "--jar", str(new))
    path = made["coprocessor"]["path"]
    assert code == 0 and path != installed and paths(admin) == {path}
    assert Path(path.removeprefix("file://")).read_bytes() == new.read_bytes()
    assert cli("upgrade", "--jar", str(new))[1]["changed"] is False
    assert cli("install", "--jar", str(jar))[0] == 4  # upgrade does that
    assert cli("upgrade", "--rollback")[0] == 0
    assert paths(admin) == {installed}
    assert cli("upgrade", "--rollback")[0] == 4  # there is no version before
    assert cli("status")[0] == 0


@pytest.mark.parametrize(
    ("what", "member", "old", "new"),
    [
        ("answers as another version", PROBE, b"0.1.0", b"0.1.9"),
        ("does not know the probe", OBSERVER, b"preGetOp", b"preGetOq"),
        ("is refused by the master", OBSERVER, b"RetentionObserver", b"RetentionObservex"),
    ],
)
def test_a_build_that_does_not_work_is_taken_back_by_itself(
    cli: Tms,
    admin: Admin,
    installed: str,
    jar: Path,
    tmp_path: Path,
    what: str,
    member: str,
    old: bytes,
    new: bytes,
) -> None:
    before, note = descriptions(admin), admin.config("installed")
    broken = changed(jar, tmp_path / "broken.jar", replaced(member, old, new))
    code, said = cli("upgrade", "--jar", str(broken), "--wait", "2s")
    assert code in (6, 78), what
    assert "had before" in said["error"]["message"]
    assert descriptions(admin) == before and admin.config("installed") == note
    assert cli("status")[0] == 0


def test_an_upgrade_that_died_anywhere_is_finished_or_taken_back(
    cli: Tms,
    admin: Admin,
    installed: str,
    jar: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    new = changed(jar, tmp_path / "new.jar")

    def prepare() -> None:
        cli("upgrade", "--jar", str(jar))
        assert paths(admin) == {installed}

    points = 0
    for point in interrupted(cli, monkeypatch, prepare, "upgrade", "--jar", str(new)):
        points += 1
        assert all(admin.enabled(name) for name in admin.tables())
        if point % 2:
            assert cli("upgrade", "--jar", str(new))[0] == 0
            assert len(paths(admin) - {installed}) == 1
        assert cli("upgrade", "--rollback")[0] == 0
        assert paths(admin) == {installed}
        assert cli("status")[0] == 0
    assert points == 3  # note, two tables


def test_there_is_no_going_back_to_a_jar_that_is_gone(
    cli: Tms, admin: Admin, installed: str, jar: Path, tmp_path: Path
) -> None:
    assert cli("upgrade", "--jar", str(changed(jar, tmp_path / "new.jar")))[0] == 0
    before = paths(admin)
    former = Path(installed.removeprefix("file://"))
    former.write_bytes(b"")
    assert "other bytes" in cli("upgrade", "--rollback")[1]["error"]["message"]
    former.unlink()
    code, said = cli("upgrade", "--rollback")
    assert code == 78 and "is gone" in said["error"]["message"]
    assert paths(admin) == before


def test_uninstalling_takes_the_coprocessor_off_and_keeps_the_messages(
    cli: Tms, admin: Admin, url: str, installed: str, jar: Path
) -> None:
    with tms.open(url) as bus:
        bus.create_topic("t")
        bus.publish("t", b"kept")
    code, said = cli("uninstall")
    assert code == 2 and "--yes" in said["error"]["message"]
    assert paths(admin) == {installed}
    assert cli("uninstall", "--dry-run")[1]["changed"] is False
    assert cli("uninstall", "--yes")[1]["changed"] is True
    assert paths(admin) == {None}
    assert cli("uninstall", "--yes")[1]["changed"] is False
    assert cli("install", "--jar", str(jar))[0] == 0  # into the noted directory
    with tms.open(url) as bus:
        read = [one.value for one in bus.consumer("t", start="earliest", stop_at_end=True)]
    assert read == [b"kept"]


def test_dropping_that_died_anywhere_is_finished_by_the_next(
    cli: Tms, admin: Admin, jar: Path, directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["install", "--jar", str(jar), "--jar-directory", directory, "--regions", "1"]

    def prepare() -> None:
        assert cli(*arguments)[0] == 0

    points = 0
    drop = ("uninstall", "--drop-tables", "--yes")
    for point in interrupted(cli, monkeypatch, prepare, *drop):
        points += 1
        if point == 1:  # a table is now disabled
            assert cli("status")[0] == 1
            assert cli(*arguments)[0] == 0 and cli("status")[0] == 0
        assert cli(*drop)[0] == 0
        assert admin.place.namespace not in admin.namespaces()
    assert points == 7  # three tables disabled and deleted, the namespace
    assert cli(*drop)[1]["changed"] is False


def test_status_finds_what_is_wrong(cli: Tms, admin: Admin, installed: str, jar: Path) -> None:
    def problems() -> str:
        code, seen = cli("status")
        assert (code == 0) is seen["healthy"]
        return " | ".join(one["what"] for one in seen["findings"] if one["severity"] == "problem")

    assert problems() == ""
    whole = admin.table("messages")
    own = {"IS_META", "DURABILITY", "hbase.store.file-tracker.impl"}
    attributes = {name: value for name, value in whole.attributes.items() if name not in own}

    def set_attributes(wanted: dict[str, str]) -> None:
        admin.modify_table(tms_table(wanted))

    from tms.store.hbase.admin import HBaseTable

    def tms_table(wanted: dict[str, str]) -> HBaseTable:
        return HBaseTable("messages", wanted)

    set_attributes({**attributes, "tms.enabled": "false"})
    assert "switched off in 2 of 2 regions" in problems()
    set_attributes({name: value for name, value in attributes.items() if "coproc" not in name})
    assert "2 of 2 regions have no coprocessor" in problems()
    set_attributes(attributes)
    admin.disable("payloads")
    assert "it is disabled" in problems()
    file = Path(installed.removeprefix("file://"))
    content = file.read_bytes()
    file.unlink()
    assert cli("install", "--jar", str(jar))[0] == 0  # enables the table, installs the jar again
    assert file.read_bytes() == content
    assert problems() == ""
    file.unlink()
    assert f"{installed} is gone" in problems()


def test_cleaning_up_is_done_by_the_coprocessor(
    cli: Tms,
    hbase: Endpoint,
    url: str,
    jar: Path,
    directory: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a shell of HBase and Java here: Thrift is enough."""
    arguments = ["install", "--jar", str(jar), "--jar-directory", directory, "--regions", "2"]
    assert cli(*arguments)[0] == 0
    refresh_soon(url)
    messages = f"{url.rpartition('/')[2]}:messages"
    with tms.open(url) as bus:
        bus.create_topic("short", retention="1s")
        bus.create_topic("kept")
        bus.publish("short", b"gone")
        bus.publish("kept", b"kept")
    time.sleep(1.1)
    engine = tms.open_engine(url)
    with Bus(engine) as bus:  # seals open segments, and notes the time
        for topic in ("short", "kept"):
            bus.describe_topic(topic)
        engine.maintenance.clean()
    monkeypatch.setenv("PATH", "/nowhere")
    with hbase.connect() as gateway:
        assert len(gateway.scan(messages)) == 2
    deadline = time.monotonic() + 60  # until the regions have read the time
    while True:
        code, made = cli("cleanup")
        assert (code, made["started"], made["commands"]) == (0, True, [])
        with hbase.connect() as gateway:
            if len(gateway.scan(messages)) == 1:
                break
        assert time.monotonic() < deadline
    deadline = time.monotonic() + 60
    again = time.monotonic() + 5  # a compaction does not count if a flush ends while it begins
    while None in (cleaned := _cleaned(cli)):
        assert time.monotonic() < deadline, cleaned
        if time.monotonic() > again:
            assert cli("cleanup")[0] == 0
            again = time.monotonic() + 5
    with tms.open(url) as bus:
        assert [one.value for one in bus.consumer("kept", stop_at_end=True)] == [b"kept"]


def test_without_a_coprocessor_cleaning_up_is_done_by_the_shell_of_hbase_or_told(
    cli: Tms, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that writes its input lines to a file stands in for the shell."""
    assert cli("install", "--no-coprocessor", "--regions", "2")[0] == 0
    monkeypatch.setenv("PATH", str(tmp_path))
    code, told = cli("cleanup")
    assert (code, told["started"]) == (1, False)
    assert [line.split(" ")[0] for line in told["commands"]] == ["flush"] * 2 + [
        "major_compact"
    ] * 2
    shell = tmp_path / "hbase"
    shell.write_text(f'#!/bin/sh\nwhile read -r line; do echo "$line"; done > {tmp_path}/lines\n')
    shell.chmod(shell.stat().st_mode | stat.S_IXUSR)
    code, made = cli("cleanup")
    assert (code, made["started"]) == (0, True)
    lines = (tmp_path / "lines").read_text().splitlines()
    assert lines == told["commands"] == made["commands"]
    shell.write_text("#!/bin/sh\necho no table >&2\nexit 3\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    code, said = cli("cleanup")
    assert code == 6 and "no table" in said["error"]["message"]


def _cleaned(cli: Tms) -> list[int | None]:
    """The time up to which each table with a coprocessor is cleaned."""
    return [one["cleaned_before_ms"] for one in cli("status")[1]["tables"][:2]]


@pytest.mark.long
def test_a_server_that_cannot_read_the_jar_serves_again_once_it_is_put_back(
    own_hbase: Standalone, jar: Path, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    url = own_hbase.url("tms")
    cli = cli_of(url, capsysbinary)
    jars = tmp_path / "jars"
    arguments = ["install", "--jar", str(jar), "--jar-directory", str(jars), "--regions", "1"]
    assert cli(*arguments)[0] == 0
    with tms.open(url) as bus:
        bus.create_topic("t")
        bus.publish("t", b"kept")
    shutil.move(jars, tmp_path / "elsewhere")
    own_hbase.server.kill()
    own_hbase.server.start()
    own_hbase.server.wait_for_line("ABORTING region server", 120)
    # The rollback needs nothing of HBase: the next start finds it.
    shutil.move(tmp_path / "elsewhere", jars)
    own_hbase.server.kill()
    own_hbase.start()
    deadline = time.monotonic() + 120
    while cli("status")[0] != 0:
        assert time.monotonic() < deadline
    with tms.open(url) as bus:
        read = [one.value for one in bus.consumer("t", start="earliest", stop_at_end=True)]
    assert read == [b"kept"]
