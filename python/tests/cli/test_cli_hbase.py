"""`tms hbase` without an HBase: arguments, jars and their names, and plans from described
states."""

import hashlib
import json
import re
import socket
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tms.cli.main import run
from tms.errors import ConfigError, Conflict
from tms.store.hbase.admin import HBaseTable
from tms.store.hbase.coprocessor import VERSION
from tms.store.hbase.deployment import jar, plan
from tms.store.hbase.deployment.plan import (
    Ask,
    Build,
    CreateNamespace,
    CreateTable,
    DropNamespace,
    DropTable,
    EnableTable,
    FoundTable,
    Installed,
    ModifyTable,
    Note,
    PutJar,
    Step,
    TablesState,
)
from tms.store.hbase.deployment.tables import (
    COPROCESSOR,
    DESIGNS,
    Tuning,
    coprocessor_path,
    mended,
    with_coprocessor,
)
from tms.store.hbase.rows import salt, split_rows

ROOT = Path(__file__).resolve().parents[3]
OLD = Build("0.0.9", "hdfs:///tms/tms-coprocessor-0.0.9-00000000.jar", "00" * 32)
NEW = Build("0.1.0", "hdfs:///tms/tms-coprocessor-0.1.0-11111111.jar", "11" * 32)
NOTE = Installed("0.1.0", 1_000, 1_000, OLD)
NOTHING = TablesState("tms")

Tms = Callable[..., tuple[int, Any]]


def state(
    messages: Build | None = OLD,
    payloads: Build | None = OLD,
    note: Installed | None = NOTE,
    without: tuple[str, ...] = (),
    disabled: tuple[str, ...] = (),
) -> TablesState:
    """A namespace with the tables of TMS, and these coprocessors."""
    builds = {"messages": messages, "payloads": payloads, "metadata": None}
    tables = {}
    for name, build in builds.items():
        table = with_coprocessor(mended(DESIGNS[name], Tuning()), build and build.path)
        if name not in without:
            tables[name] = FoundTable(table, name not in disabled)
    return TablesState("tms", True, tables, (), note)


def install(
    found: TablesState, build: Build | None = OLD, tuning: Tuning | None = None
) -> list[Step]:
    return plan.install(found, build, tuning or Tuning(), 4, "0.1.0", 2_000)


def short(steps: list[Step]) -> list[str]:
    """Steps as words: `create messages`, `ask payloads 0.1.0`."""
    texts = []
    for step in steps:
        match step:
            case CreateTable(table) | ModifyTable(table):
                verb = "create" if isinstance(step, CreateTable) else "modify"
                path = coprocessor_path(table)
                version = {OLD.path: " old", NEW.path: " new"}.get(path or "", "")
                texts.append(f"{verb} {table.name}{version}")
            case Ask(name, version):
                texts.append(f"ask {name} {version}")
            case EnableTable(name):
                texts.append(f"enable {name}")
            case DropTable(name):
                texts.append(f"drop {name}")
            case Note(note):
                build = note.coprocessor and note.coprocessor.version
                texts.append(f"note {build} {note.former and note.former.version}")
            case _:
                texts.append(type(step).__name__)
    return texts


# --- tables --------------------------------------------------------------------------------------


def test_regions_are_equal_ranges_of_the_salt() -> None:
    assert split_rows(1) == []
    assert split_rows(4) == [b"4000", b"8000", b"c000"]
    splits = split_rows(16)
    hits = [
        sum(salt(uid, p).encode() >= one for one in splits) for uid in range(99) for p in (0, 1)
    ]
    assert set(hits) == set(range(16))


def test_the_coprocessor_takes_a_free_place_and_keeps_its_own() -> None:
    theirs = {"coprocessor$1": "|org.example.Theirs|1|", "tms.ttl": "5", "IS_META": "false"}
    made = with_coprocessor(HBaseTable("messages", theirs), OLD.path)
    assert made.attributes == {
        "coprocessor$1": "|org.example.Theirs|1|",
        "coprocessor$2": f"{OLD.path}|{COPROCESSOR}|1073741823|",
        "tms.ttl": "5",
    }
    assert coprocessor_path(made) == OLD.path
    assert coprocessor_path(with_coprocessor(made, NEW.path)) == NEW.path
    assert "coprocessor$3" not in with_coprocessor(made, NEW.path).attributes
    assert with_coprocessor(made, None).attributes == {
        "coprocessor$1": "|org.example.Theirs|1|",
        "tms.ttl": "5",
    }


def test_a_table_is_mended_where_tms_relies_on_it_only() -> None:
    found = HBaseTable("messages", {"their": "own"}, {"VERSIONS": "3", "BLOCKSIZE": "1024"})
    family = mended(found, Tuning()).family_attributes
    assert family["VERSIONS"] == "1" and family["BLOCKSIZE"] == "1024"
    assert mended(found, Tuning(ttl="5", isolation="committed")).attributes == {
        "their": "own",
        "tms.ttl": "5",
        "tms.isolation": "committed",
    }
    assert mended(HBaseTable("metadata"), Tuning(ttl="5")).attributes == {}


# --- plans ---------------------------------------------------------------------------------------


def test_an_install_makes_what_is_not_there() -> None:
    steps = install(NOTHING)
    assert short(steps) == [
        "PutJar",
        "CreateNamespace",
        "create metadata",
        "create messages old",
        "create payloads old",
        "note 0.0.9 None",
        "ask messages 0.0.9",
        "ask payloads 0.0.9",
    ]
    assert [len(one.splits) for one in steps if isinstance(one, CreateTable)] == [0, 3, 3]
    assert short(install(NOTHING, None))[-1] == "note None None"
    assert not any(isinstance(one, PutJar | Ask) for one in install(NOTHING, None))


def test_an_install_of_what_is_there_only_looks() -> None:
    assert plan.changes(install(state())) == []
    assert plan.changes(install(state(None, None, Installed("0.1.0", 1, 1)), None)) == []


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (
            TablesState("tms", True),
            ["create metadata", "create messages old", "create payloads old"],
        ),
        (state(without=("messages", "payloads")), ["create messages old", "create payloads old"]),
        (state(payloads=None), ["modify payloads old"]),
        (state(disabled=("payloads",)), ["enable payloads"]),
        (state(None, None, disabled=("metadata",)), ["enable metadata", "modify messages old"]),
    ],
)
def test_an_install_goes_on_where_another_stopped(found: TablesState, expected: list[str]) -> None:
    done = short(plan.changes(install(found)))
    assert done[: len(expected)] == expected
    assert "CreateNamespace" not in done


def test_an_install_tunes_only_what_is_said() -> None:
    steps = install(state(), tuning=Tuning(ttl="5"))
    assert [one.changes for one in steps if isinstance(one, ModifyTable)] == [("tms.ttl = 5",)] * 2
    tuned = with_coprocessor(HBaseTable("messages", {"tms.ttl": "5"}), OLD.path)
    assert mended(tuned, Tuning()).attributes["tms.ttl"] == "5"
    assert "tms.ttl" not in mended(tuned, Tuning(ttl="")).attributes


def test_an_install_refuses_what_would_overrule_somebody() -> None:
    for found, build, text in (
        (TablesState("tms", True, {}, ("orders",)), OLD, "orders"),
        (TablesState("tms", True, {}, ("messages",)), OLD, "messages"),
        (state(), NEW, "already"),
        (state(payloads=None), None, "already"),
    ):
        with pytest.raises(Conflict, match=text) as raised:
            install(found, build)
        assert raised.value.details["next"]


def test_an_upgrade_notes_first_and_asks_after_each_table() -> None:
    steps = plan.upgrade(state(), NEW, "0.1.0", 2_000)
    assert short(steps) == [
        "PutJar",
        "note 0.1.0 0.0.9",
        "modify messages new",
        "ask messages 0.1.0",
        "modify payloads new",
        "ask payloads 0.1.0",
    ]


def test_an_interrupted_upgrade_keeps_what_was_there_before() -> None:
    noted = Installed("0.1.0", 1_000, 2_000, NEW, OLD)
    half = state(messages=NEW, note=noted)
    done = plan.changes(plan.upgrade(half, NEW, "0.1.0", 3_000))
    assert short(done) == ["modify payloads new"]
    build, back = plan.roll_back(half, "0.1.0", 3_000)
    assert build == OLD
    assert short(plan.changes(back)) == ["note 0.0.9 None", "modify messages old"]
    half_back = state(payloads=NEW, note=Installed("0.1.0", 1_000, 3_000, OLD))
    assert short(plan.changes(plan.roll_back(half_back, "0.1.0", 4_000)[1])) == [
        "modify payloads old"
    ]


def test_there_is_no_upgrade_or_way_back_from_nothing() -> None:
    with pytest.raises(Conflict, match="no table"):
        plan.upgrade(NOTHING, NEW, "0.1.0", 1)
    with pytest.raises(Conflict, match="no coprocessor"):
        plan.upgrade(state(None, None, Installed("0.1.0", 1, 1)), NEW, "0.1.0", 1)
    with pytest.raises(Conflict, match="nothing to roll back"):
        plan.roll_back(state(), "0.1.0", 1)


def test_a_failed_upgrade_is_undone_to_what_was_there_before_it_began() -> None:
    noted = Installed("0.1.0", 1_000, 2_000, NEW, OLD)
    now = state(messages=NEW, note=noted)
    fresh = plan.undo(now, state(), NEW, "0.1.0", 3_000)
    assert short(fresh) == ["modify messages old", "ask messages 0.0.9", "note 0.0.9 None"]
    assert fresh[-1] == Note(NOTE)  # with its times
    # Also if this run only continued an interrupted one.
    again = plan.undo(state(NEW, NEW, noted), now, NEW, "0.1.0", 3_000)
    assert short(again) == [
        "modify messages old",
        "ask messages 0.0.9",
        "modify payloads old",
        "ask payloads 0.0.9",
        "note 0.0.9 None",
    ]


def test_taking_off_leaves_the_tables_and_dropping_leaves_nothing() -> None:
    off = plan.take_off(state(), "0.1.0", 2_000)
    assert short(off) == [
        "modify messages",
        "ask messages None",
        "modify payloads",
        "ask payloads None",
        "note None 0.0.9",
    ]
    assert plan.take_off(NOTHING, "0.1.0", 1) == []
    drops = [DropTable("messages"), DropTable("payloads"), DropTable("metadata")]
    assert plan.drop(state()) == [*drops, DropNamespace()]
    assert plan.drop(NOTHING) == []
    shared = TablesState("tms", True, state().tables, ("orders",), NOTE)
    assert plan.drop(shared) == drops


def test_only_tables_that_tms_made_are_dropped() -> None:
    with pytest.raises(Conflict, match="not noted"):
        plan.drop(state(None, None, note=None))
    begun = state(note=None, without=("messages", "payloads"), disabled=("metadata",))
    assert plan.drop(begun) == [DropTable("metadata"), DropNamespace()]


def test_every_step_is_said_in_words() -> None:
    steps = [*install(NOTHING), *plan.drop(state()), *plan.take_off(state(), "0.1.0", 1)]
    texts = [plan.words(one, "tms") for one in [*steps, EnableTable("messages"), CreateNamespace()]]
    assert "create the table tms:messages, 4 regions, coprocessor " + OLD.path in texts
    assert "change the table tms:messages: coprocessor$1 removed" in texts
    assert all(re.match(r"[a-z]+ ", text) for text in texts)


# --- jars ----------------------------------------------------------------------------------------


def jar_at(path: Path, version: str = VERSION, member: str = "RetentionObserver") -> Path:
    """A jar that looks like the coprocessor's."""
    with zipfile.ZipFile(path, "w") as made:
        made.writestr("META-INF/MANIFEST.MF", f"X: 1\r\nImplementation-Version: {version}\r\n")
        made.writestr(f"io/tms/hbase/{member}.class", b"\xca\xfe\xba\xbe\0\0\0\x34")
    return path


def test_a_jar_is_named_by_version_and_content(tmp_path: Path) -> None:
    found = jar.read(jar_at(tmp_path / "x.jar"))
    digest = hashlib.sha256((tmp_path / "x.jar").read_bytes()).hexdigest()
    assert (found.version, found.sha256) == (VERSION, digest)
    assert found.name == f"tms-coprocessor-{VERSION}-{digest[:8]}.jar"


def test_what_is_no_jar_of_ours_is_refused_with_a_reason(tmp_path: Path) -> None:
    whole = jar_at(tmp_path / "whole.jar").read_bytes()
    damaged = bytearray(whole)
    damaged[whole.index(b"\xca\xfe\xba\xbe") + 5] ^= 1
    (tmp_path / "damaged.jar").write_bytes(damaged)
    (tmp_path / "torn.jar").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "empty.jar").write_bytes(b"")
    for path, text in (
        (tmp_path / "nowhere.jar", "cannot be read"),
        (tmp_path, "cannot be read"),
        (tmp_path / "empty.jar", "no jar"),
        (tmp_path / "torn.jar", "no jar"),
        (tmp_path / "damaged.jar", "damaged"),
        (jar_at(tmp_path / "other.jar", member="Other"), "has no class"),
        (jar_at(tmp_path / "old.jar", version="0.0.1"), r"TMS 0\.0\.1"),
    ):
        with pytest.raises(ConfigError, match=text) as raised:
            jar.read(path)
        assert raised.value.details["next"]


def test_the_versions_of_python_and_java_are_one() -> None:
    java = (ROOT / "coprocessor/src/main/java/io/tms/hbase/Version.java").read_text()
    assert f'NAME = "{VERSION}"' in java
    assert f"<version>{VERSION}</version>" in (ROOT / "coprocessor" / "pom.xml").read_text()
    assert f"io.tms.hbase.{COPROCESSOR.rpartition('.')[2]}" == COPROCESSOR


# --- arguments -----------------------------------------------------------------------------------


@pytest.fixture
def cli(capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Tms:
    """Run `tms hbase …`; returns its exit code and its JSON."""
    for name in ("TMS_STORE", "TMS__STORE", "TMS_URL", "TMS_DATA"):
        monkeypatch.delenv(name, raising=False)

    def cli(*arguments: str) -> tuple[int, Any]:
        code = run(["hbase", *arguments, "--json", "--no-input"])
        return code, json.loads(capsysbinary.readouterr().out)

    return cli


def test_the_store_is_named_by_option_or_environment(
    cli: Tms, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli("status")[0] == 2
    assert "--store" in cli("status")[1]["error"]["message"]
    assert cli("status", "--store", "http://h:9090")[0] == 78
    assert "belongs to HBase" in cli("status", "--store", "hbase://h/hbase")[1]["error"]["message"]
    assert cli("status", "--store", "hbase://h", "--url", "http://h")[0] == 2
    for name in ("TMS_STORE", "TMS__STORE"):
        with monkeypatch.context() as patched:
            patched.setenv(name, "hbase://h:0")
            assert "hbase://h:0" in cli("status")[1]["error"]["message"]


@pytest.mark.timeout(100)
def test_an_hbase_that_is_away_is_said_with_its_address(
    cli: Tms, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tms.cli.hbase_options.CALL_S", 1.0)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"hbase://127.0.0.1:{nobody.getsockname()[1]}/tms"
        for command in ("status", "install", "upgrade", "uninstall", "cleanup"):
            more = ["--no-coprocessor"] if command == "install" else []
            code, said = cli(command, "--store", url, *more)
            assert code == 6 and "cannot be reached" in said["error"]["message"]
            assert said["error"]["where"] == url


def test_options_that_contradict_each_other_are_refused(cli: Tms) -> None:
    at = ("--store", "hbase://127.0.0.1:1")
    for arguments in (
        ("install", "--no-coprocessor", "--jar", "x.jar"),
        ("upgrade", "--rollback", "--jar", "x.jar"),
        ("install", "--regions", "0"),
        ("install", "--ttl", "soon"),
        ("install", "--refresh", "forever"),
        ("install", "--isolation", "none"),
        ("install", "--no-coprocessor", "--wait", "forever"),
    ):
        assert cli(*arguments, *at)[0] == 2, arguments


def test_a_time_to_live_of_hbase_becomes_the_default_retention_and_is_lifted() -> None:
    found = DESIGNS["messages"]
    found = replace(found, family_attributes={**found.family_attributes, "TTL": "86400"})
    made = mended(found, Tuning())
    assert (made.attributes["tms.ttl"], made.ttl_ms) == ("86400000", 86_400_000)
    assert made.family_attributes["TTL"] == str(2**31 - 1)
    assert mended(found, Tuning(ttl="1000")).attributes["tms.ttl"] == "1000"
    kept = mended(replace(found, attributes={**found.attributes, "tms.ttl": "7"}), Tuning())
    assert kept.attributes["tms.ttl"] == "7"
    assert "tms.ttl" not in mended(replace(found, name="metadata"), Tuning()).attributes
