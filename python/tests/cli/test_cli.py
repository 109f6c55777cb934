"""The command `tms` on a data directory: its input, its output, and its exit codes."""

import csv
import io
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

import tms
from tests.contracts.bus_contract import KAFKA_NAMES
from tests.http_kit import serving
from tests.waiting import PATIENCE_S
from tms.cli import main
from tms.model.topic import TopicName

TMS = (sys.executable, "-c", "from tms.cli.main import main; main()")


@dataclass
class Ended:
    """The end of a run of `tms`."""

    code: int
    out: bytes
    err: str

    @property
    def json(self) -> Any:
        """Standard output as JSON."""
        return json.loads(self.out)


Run = Callable[..., Ended]


def _environment(**extra: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TMS_")}
    return {**clean, **extra}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory that does not exist yet."""
    return tmp_path / "data"


@pytest.fixture
def run(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs `tms` on the data directory, in this process."""
    for name in os.environ:
        if name.startswith("TMS_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, stdin: bytes = b"", **environment: str) -> Ended:
        out, err = io.BytesIO(), io.BytesIO()
        with monkeypatch.context() as patched:
            for name, value in ({"TMS_DATA": str(data)} | environment).items():
                patched.setenv(name, value)
            patched.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
            patched.setattr(sys, "stdout", io.TextIOWrapper(out, write_through=True))
            patched.setattr(sys, "stderr", io.TextIOWrapper(err, write_through=True))
            code = main.run(list(arguments))
            return Ended(code, out.getvalue(), err.getvalue().decode())

    return run


@pytest.fixture
def greetings(run: Run, data: Path) -> Path:
    """A data directory with a topic of two partitions and three messages."""
    with tms.open(data) as bus:
        bus.create_topic("greetings", partitions=2)
        bus.publish("greetings", b"hi", key=b"ann", headers={"lang": b"en"}, partition=0)
        bus.publish("greetings", b"hello", key=b"bob", partition=0)
        bus.publish("greetings", None, key=b"cy", partition=1)
    return data


# --- topics --------------------------------------------------------------------------------------


def test_a_topic_says_whether_its_retention_is_its_own(run: Run) -> None:
    run("topic", "create", "orders")
    assert b"14d (default)" in run("topic", "describe", "orders").out
    assert b"36h (default)" not in run("topic", "update", "orders", "--retention", "36h").out
    assert b"14d (default)" in run("topic", "update", "orders", "--retention", "default").out
    assert run("topic", "update", "orders", "--tombstone-retention", "default").code == 2


def test_a_topic_is_created_described_listed_updated_and_deleted(run: Run) -> None:
    made = run("topic", "create", "orders", "-p", "3", "--retention", "36h", "--json")
    assert made.code == 0
    assert made.json["settings"]["partitions"] == 3
    assert made.json["settings"]["retention_ms"] == 36 * 3_600_000
    assert run("topic", "create", "orders", "-p", "3", "--retention", "36h").code == 0
    assert [one["name"] for one in run("topic", "list", "--json").json] == ["orders"]
    changed = run("topic", "update", "orders", "--partitions", "4", "--json")
    assert changed.json["settings"]["partitions"] == 4
    assert len(run("topic", "describe", "orders", "--json").json["partition_infos"]) == 4
    assert run("topic", "delete", "orders", "--yes", "--json").json == {
        "topic": "orders",
        "deleted": True,
    }
    assert run("topic", "list", "--json").json == []


@pytest.mark.parametrize("name", KAFKA_NAMES, ids=lambda name: name[:20])
def test_a_topic_with_a_name_of_kafka_is_good_for_each_command(
    run: Run, data: Path, tmp_path: Path, name: str
) -> None:
    namespace, topic = TopicName.parse(name)
    assert run("topic", "create", name, "-p", "2").code == 0
    assert run("publish", name, "-K", ":", stdin=b"k:1\nk:2\n").code == 0
    assert run("consume", name, "--start", "earliest", "-e").out == b"1\n2\n"
    listed = run("topic", "list", "-n", namespace, "--json").json
    assert [one["topic"] for one in listed] == [topic]
    for form in ("ndjson", "parquet"):
        file = str(tmp_path / f"out.{form}")
        assert run("export", name, "--to", file).code == 0
        assert run("import", name, file).code == 0
    assert len(run("consume", name, "--start", "earliest", "-e").out.splitlines()) == 8
    assert run("queue", "create", name, "mail").code == 0
    assert run("queue", "receive", name, "mail", "--json").json["value"] == "1"
    assert run("group", "reset", name, "g", "--to", "latest", "--yes").code == 0
    assert run("group", "show", name, "g").code == 0
    assert run("publish", name, "--delay", "1h", stdin=b"later\n").code == 0
    assert len(run("delayed", "list", name, "--json").json) == 1
    assert run("topic", "truncate", name, "--yes").code == 0
    assert run("consume", name, "--start", "earliest", "-e").out == b""
    assert run("fsck", "--json").code == 0
    assert run("topic", "delete", name, "--yes").code == 0
    assert run("topic", "describe", name).code == 3


def test_a_dry_run_changes_nothing(run: Run, greetings: Path) -> None:
    for command in ("truncate", "delete"):
        made = run("topic", command, "greetings", "--dry-run")
        assert made.code == 0
        assert "3 messages" in made.err
        assert "nothing was changed" in made.err
    described = run("topic", "describe", "greetings", "--json").json
    assert sum(one["end_offset"] - one["start_offset"] for one in described["partition_infos"]) == 3


def test_truncating_takes_one_partition_too(run: Run, greetings: Path) -> None:
    where = ("topic", "truncate", "greetings", "--before", "offset:1", "-p", "0")
    assert "1 partitions" in run(*where, "--dry-run").err
    assert run(*where, "--yes").code == 0
    described = run("topic", "describe", "greetings", "--json").json["partition_infos"]
    assert [(one["start_offset"], one["end_offset"]) for one in described] == [(1, 2), (0, 1)]
    for more in ("--dry-run", "--yes"):
        gone = run("topic", "truncate", "greetings", "-p", "2", more)
        assert gone.code == 3
        assert "partition 2 of greetings" in gone.err


def test_destruction_without_a_person_or_yes_is_refused(run: Run, greetings: Path) -> None:
    for command in ("truncate", "delete"):
        made = run("topic", command, "greetings", stdin=b"greetings\n")
        assert made.code == 2
        assert "--yes" in made.err


def test_truncating_removes_what_is_before(run: Run, greetings: Path) -> None:
    assert run("topic", "truncate", "greetings", "--yes").code == 0
    assert run("consume", "greetings", "--start", "earliest", "-e").out == b""


def _typing(arguments: list[str], typed: bytes, cwd: Path) -> tuple[int, str]:
    """Run `tms` on a terminal with typed input; returns its exit code and its output."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(cwd)
        os.execve(TMS[0], [*TMS, *arguments], _environment(TERM="xterm"))
    os.write(terminal, typed)
    shown = b""
    while True:
        try:
            part = os.read(terminal, 4096)
        except OSError:
            break
        if not part:
            break
        shown += part
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown.decode()


def test_a_person_confirms_by_typing_the_name(greetings: Path, run: Run) -> None:
    delete = ["--data", str(greetings), "topic", "delete", "greetings"]
    code, shown = _typing(delete, b"greeting\n", greetings.parent)
    assert code == 2
    assert "nothing was changed" in shown
    assert run("topic", "describe", "greetings").code == 0
    code, shown = _typing(delete, b"greetings\n", greetings.parent)
    assert code == 0, shown
    assert run("topic", "describe", "greetings").code == 3


# --- output --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "begin"),
    [
        (("--json", "-o", "yaml"), b"- name: greetings"),
        (("-o", "yaml", "--json"), b'[\n  {\n    "name": "greetings"'),
        (("--output", "yaml", "-o", "csv"), b"name,partitions"),
    ],
)
def test_the_last_form_of_output_holds(
    run: Run, greetings: Path, options: tuple[str, ...], begin: bytes
) -> None:
    assert run("topic", "list", *options).out.startswith(begin)


def test_every_form_of_output_can_be_read_by_its_programs(run: Run, greetings: Path) -> None:
    as_json = run("topic", "list", "-o", "json").json
    as_yaml = yaml.safe_load(run("topic", "list", "-o", "yaml").out)
    assert _but_bytes(as_yaml) == _but_bytes(as_json)
    rows = list(csv.DictReader(io.StringIO(run("topic", "list", "-o", "csv").out.decode())))
    assert rows[0]["name"] == "greetings"
    assert run("topic", "list").out.startswith(b"NAME ")


def _but_bytes(topics: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The topics without the field that each opening of a directory may change."""
    assert all(topic.pop("stored_bytes") > 0 for topic in topics)
    return topics


def test_options_may_stand_before_or_after_the_command(run: Run, greetings: Path) -> None:
    before, after = run("--json", "topic", "list").json, run("topic", "list", "--json").json
    assert _but_bytes(before) == _but_bytes(after)


def test_what_is_typed_wins_over_the_environment(run: Run, tmp_path: Path) -> None:
    other = tmp_path / "other"
    assert run("topic", "create", "there").code == 0
    assert run("--data", str(other), "topic", "create", "here").code == 0
    assert [one["name"] for one in run("topic", "list", "--json").json] == ["there"]
    assert [one["name"] for one in run("topic", "list", "--json", TMS_DATA=str(other)).json] == [
        "here"
    ]


def test_quiet_leaves_only_data(run: Run, greetings: Path) -> None:
    made = run("consume", "greetings", "--start", "earliest", "-e", "-q")
    assert made.err == ""
    assert made.out == b"hi\nhello\n\n"


# --- publish -------------------------------------------------------------------------------------


def _stored(data: Path, topic: str) -> list[tms.Message]:
    with tms.open(data) as bus, bus.consumer(topic, start="earliest", stop_at_end=True) as consumer:
        return sorted(consumer, key=lambda message: message.id)


def test_lines_become_messages_byte_for_byte(run: Run, data: Path) -> None:
    run("topic", "create", "raw")
    made = run(
        "publish", "raw", "--json", stdin=b"plain\n\xff\x00binary\r\n\nlast without line feed"
    )
    assert made.code == 0
    assert made.json["messages"] == 4
    values = [message.value for message in _stored(data, "raw")]
    assert values == [b"plain", b"\xff\x00binary\r", b"", b"last without line feed"]


def test_files_keys_headers_and_partitions_are_taken(run: Run, data: Path, tmp_path: Path) -> None:
    run("topic", "create", "raw", "-p", "3")
    (tmp_path / "lines").write_text("ann:hi\nbob::ho\n")
    made = run("publish", "raw", "lines", "-K", ":", "-H", "a=b=c", "-p", "2")
    assert made.code == 0
    found = [(m.key, m.value, m.headers, m.partition) for m in _stored(data, "raw")]
    assert found == [(b"ann", b"hi", {"a": b"b=c"}, 2), (b"bob", b":ho", {"a": b"b=c"}, 2)]


def test_a_field_of_a_json_line_is_its_key(run: Run, data: Path) -> None:
    run("topic", "create", "raw")
    lines = b'{"k": "UA", "n": 1}\n{"k": 7}\n{"k": null}\n'
    assert run("publish", "raw", "--key-field", "k", stdin=lines).code == 0
    found = [(message.key, message.value) for message in _stored(data, "raw")]
    assert found == [(b"UA", b'{"k": "UA", "n": 1}'), (b"7", b'{"k": 7}'), (None, b'{"k": null}')]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--ndjson"], b"{"),
        (["--key-field", "k"], b"[1]"),
        (["--key-field", "k"], b'{"other": 1}'),
        (["--key-field", "k"], b'{"k": 1, "k": 2}'),
        (["-K", "|"], b"no delimiter"),
    ],
)
def test_a_bad_line_is_named(run: Run, options: list[str], line: bytes) -> None:
    run("topic", "create", "raw")
    made = run("publish", "raw", *options, stdin=b'{"k": "a|b"}\n' + line)
    assert made.code == 2
    assert "standard input, line 2" in made.err


def test_publishing_takes_durability_and_compression(run: Run, data: Path) -> None:
    run("topic", "create", "raw")
    made = run("publish", "raw", "--durability", "written", "--compression", "zstd", stdin=b"x\n")
    assert made.code == 0
    assert [message.value for message in _stored(data, "raw")] == [b"x"]


def test_a_dash_among_the_files_is_standard_input(run: Run, data: Path, tmp_path: Path) -> None:
    run("topic", "create", "raw")
    (tmp_path / "lines").write_bytes(b"2\n")
    assert run("publish", "raw", "-", str(tmp_path / "lines"), stdin=b"1\n").code == 0
    assert sorted(message.value or b"" for message in _stored(data, "raw")) == [b"1", b"2"]


# --- consume -------------------------------------------------------------------------------------


def test_a_format_has_the_escapes_of_kcat(run: Run, greetings: Path) -> None:
    template = r"%t %p %o %k=%v|%s %h %S %K 100%% \x41\t%T %i\n"
    made = run("consume", "greetings", "--start", "earliest", "-e", "-f", template, "-p", "0")
    first = _stored(greetings, "greetings")[0]
    line = f"greetings 0 0 ann=hi|hi lang=en 2 3 100% A\t{first.timestamp_ms} {first.id}"
    assert made.out.decode().splitlines()[0] == line


def test_an_unknown_escape_is_refused(run: Run, greetings: Path) -> None:
    assert run("consume", "greetings", "-e", "-f", "%z").code == 2


@pytest.mark.parametrize(
    ("start", "offsets"),
    [
        ("earliest", [0, 1]),
        ("-1", [1]),
        ("-100", [0, 1]),
        ("offset:1", [1]),
        ("2020-01-01", [0, 1]),
        ("@2020-01-01T00:00Z", [0, 1]),
        ("2099-01-01T00:00+02:00", []),
        ("time:1", [0, 1]),
        ("-1h", [0, 1]),
        ("-1.5d", [0, 1]),
        ("latest", []),
    ],
)
def test_consuming_begins_where_it_was_told(
    run: Run, greetings: Path, start: str, offsets: list[int]
) -> None:
    made = run("consume", "greetings", "--start", start, "-e", "-p", "0", "-f", r"%o\n")
    assert made.code == 0, made.err
    assert [int(line) for line in made.out.split()] == offsets


def test_consuming_begins_at_an_id_or_after_it(run: Run, greetings: Path) -> None:
    first = next(m for m in _stored(greetings, "greetings") if m.partition == 0)
    for start, offsets in ((str(first.id), b"0\n1\n"), (f"after:{first.id}", b"1\n")):
        made = run("consume", "greetings", "--start", start, "-e", "-p", "0", "-f", r"%o\n")
        assert made.out == offsets


def test_consuming_stops_after_so_many(run: Run, greetings: Path) -> None:
    assert run("consume", "greetings", "--start", "earliest", "-n", "2", "-q").out.count(b"\n") == 2


def test_consumed_json_is_one_document_per_line(run: Run, greetings: Path) -> None:
    made = run("consume", "greetings", "--start", "earliest", "-e", "--json")
    documents = [json.loads(line) for line in made.out.splitlines()]
    by_key = {document["key"]: document for document in documents}
    assert by_key["ann"]["value"] == "hi"
    assert by_key["ann"]["headers"] == {"lang": "en"}
    assert by_key["cy"]["value"] is None
    assert set(by_key["ann"]) == {
        "partition", "id", "offset", "timestamp_ms", "key", "value", "headers", "encoding",
    }  # fmt: skip


def test_a_value_cannot_break_out_of_csv(run: Run, data: Path) -> None:
    with tms.open(data) as bus:
        bus.create_topic("evil")
        bus.publish("evil", b"a\r\n\x1b[31m", key=b"=cmd()")
    made = run("consume", "evil", "--start", "earliest", "-e", "-o", "csv")
    (row,) = csv.DictReader(io.StringIO(made.out.decode()))
    assert row["key"] == "'=cmd()"
    assert row["value"] == "a\\r\\n\\x1b[31m"


def test_lines_of_csv_have_the_same_columns_with_and_without_an_event_time(
    run: Run, data: Path
) -> None:
    with tms.open(data) as bus:
        bus.create_topic("readings")
        for value, time_ms in ((b"a", None), (b"b", 7), (b"c", None)):
            bus.publish("readings", value, event_time_ms=time_ms)
    made = run("consume", "readings", "--start", "earliest", "-e", "-o", "csv")
    rows = csv.DictReader(io.StringIO(made.out.decode()))
    assert [(row["value"], row["event_time_ms"]) for row in rows] == [
        ("a", ""), ("b", "7"), ("c", ""),
    ]  # fmt: skip


def test_on_a_terminal_a_value_cannot_steer_it(data: Path) -> None:
    with tms.open(data) as bus:
        bus.create_topic("evil")
        bus.publish("evil", b"\x1b[2Jgone")
    shown = _typing(
        ["--data", str(data), "consume", "evil", "--start", "earliest", "-e"], b"", data.parent
    )[1]
    assert "\\x1b[2Jgone" in shown
    assert "\x1b[2J" not in shown


# --- exit codes ----------------------------------------------------------------------------------

CODES = {
    0: ["topic", "list"],
    2: ["topic", "create", "a/b"],
    3: ["topic", "describe", "nothing"],
    4: ["topic", "create", "greetings", "-p", "7"],
    5: ["topic", "create", "system:mine"],
    6: ["--url", "http://127.0.0.1:9", "topic", "list"],
    78: ["--url", "nonsense", "topic", "list"],
}


@pytest.mark.parametrize("code", CODES)
def test_exit_codes_say_what_happened(run: Run, greetings: Path, code: int) -> None:
    made = run(*CODES[code], "--json")
    assert made.code == code
    if code:
        error = made.json["error"]
        assert error["exit_code"] == code
        assert made.err.startswith("error: ")
        assert error["message"] in made.err


@pytest.mark.parametrize(
    ("start", "reason"),
    [
        ("1900-01-01", "from 1970-01-01 to 9999-12-31"),
        ("-4000w", "from 1970-01-01 to 9999-12-31"),
        ("-1x", "-1h for an hour ago"),
        ("2026-13-01", "-1h for an hour ago"),
        ("yesterday", "none of earliest"),
    ],
)
def test_a_time_that_cannot_be_is_refused_with_what_is_allowed(
    run: Run, greetings: Path, start: str, reason: str
) -> None:
    made = run("consume", "greetings", "--start", start)
    assert made.code == 2
    assert reason in " ".join(made.err.split())


@pytest.mark.parametrize(
    "arguments",
    [
        ["topik"],
        ["topic", "create"],
        ["topic", "create", "x", "--partitions=x"],
        ["topic", "create", "x", "-p", "0"],
        ["topic", "create", "x", "--retention", "1 fortnight"],
        ["topic", "update", "greetings"],
        ["consume", "greetings", "--start", "yesterday"],
        ["consume", "greetings", "-n", "0"],
        ["publish", "greetings", "no-such-file"],
        ["publish", "greetings", "-H", "novalue"],
        ["publish", "greetings", "-K", ":", "--key-field", "k"],
        ["--url", "http://x", "--data", "y", "topic", "list"],
        ["fsck", "--url", "http://x"],
    ],
)
def test_wrong_usage_ends_with_2_and_valid_json(
    run: Run, greetings: Path, arguments: list[str]
) -> None:
    made = run(*arguments, "--json")
    assert made.code == 2, made.err
    assert made.json["error"]["exit_code"] == 2


def test_a_data_directory_in_use_ends_with_75(run: Run, greetings: Path) -> None:
    with tms.open(greetings):
        made = run("topic", "list", "--json")
    assert made.code == 75
    assert made.json["error"]["code"] == "already-running"


def test_a_reader_that_goes_away_is_no_error(run: Run, data: Path) -> None:
    with tms.open(data) as bus:
        bus.create_topic("many")
        bus.publish_many("many", [b"x" * 1000] * 5000)
    process = subprocess.Popen(
        [*TMS, "--data", str(data), "consume", "many", "--start", "earliest", "-e"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=_environment(),
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(PATIENCE_S) == 0
    assert process.stderr.read() == b""
    process.stderr.close()


def test_ctrl_c_ends_with_130(run: Run, greetings: Path) -> None:
    process = subprocess.Popen(
        [*TMS, "--data", str(greetings), "consume", "greetings", "--start", "earliest"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=_environment(),
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert b"Traceback" not in err


# --- starting ------------------------------------------------------------------------------------

HEAVY = ("pyarrow", "httptools", "uvloop", "yaml", "plyvel", "pydantic", "tenacity", "structlog")


def _imported(arguments: list[str]) -> set[str]:
    code = (
        "import sys; from tms.cli.main import run; run(sys.argv[1:]);"
        "print(*sys.modules, file=sys.stderr)"
    )
    made = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        env=_environment(),
        timeout=60,
    )
    return {name.partition(".")[0] for name in made.stderr.decode().split()}


def test_the_version_is_printed_without_loading_anything_heavy() -> None:
    made = subprocess.run([*TMS, "--version"], capture_output=True, timeout=60)
    assert made.stdout.decode() == f"tms {tms.__version__}\n"
    assert not _imported(["--version"]) & {*HEAVY, "msgspec"}


def test_talking_to_a_service_about_topics_loads_no_engine() -> None:
    loaded = _imported(["topic", "list", "--url", "http://127.0.0.1:9"])
    assert not loaded & {
        "pyarrow",
        "uvloop",
        "plyvel",
        "pydantic",
        "structlog",
    }


def _completed(words: str) -> Ended:
    made = subprocess.run(
        TMS,
        capture_output=True,
        timeout=60,
        env=_environment(_TMS_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD="4"),
    )
    return Ended(made.returncode, made.stdout, made.stderr.decode())


def test_topic_names_complete(greetings: Path) -> None:
    assert _completed(f"tms --data {greetings} consume gre").out == b"plain,greetings\n"


def test_completion_stays_silent_without_a_service() -> None:
    made = _completed("tms --url http://127.0.0.1:9 consume gre")
    assert made.out.strip() == b""
    assert made.err == ""


# --- a service -----------------------------------------------------------------------------------


@pytest.fixture
def url() -> Iterator[str]:
    """A service."""
    with serving() as served:
        yield served.url


def test_every_command_works_through_a_service_too(run: Run, url: str) -> None:
    def remote(*arguments: str, stdin: bytes = b"") -> Ended:
        made = run("--url", url, *arguments, stdin=stdin)
        assert made.code == 0, made.err
        return made

    remote("topic", "create", "orders", "-p", "2")
    remote("publish", "orders", "-K", ":", stdin=b"ann:1\nbob:2\nann:3\n")
    assert sorted(remote("consume", "orders", "--start", "earliest", "-e").out.split()) == [
        b"1",
        b"2",
        b"3",
    ]
    inspected = remote("inspect", "orders", "--json").json
    assert sum(block["count"] for one in inspected for block in one["blocks"]) == 3
    assert (
        remote("bench", "-n", "100", "--lone", "10", "--json").json["results"][0]["messages"] == 100
    )
    assert [one["name"] for one in remote("topic", "list", "--json").json] == ["orders"]
    assert remote("topic", "truncate", "orders", "--yes").code == 0
    assert remote("topic", "delete", "orders", "--yes").code == 0


def test_an_error_of_the_service_is_told_as_well(run: Run, url: str) -> None:
    made = run("--url", url, "topic", "describe", "nothing", "--json")
    assert made.code == 3
    assert made.json["error"]["code"] == "topic-not-found"
    assert made.json["error"]["where"] == url


def test_what_is_no_tms_is_recognised_at_once(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as foreign:
        port = foreign.getsockname()[1]
        answering = threading.Thread(target=_answer_like_redis, args=[foreign])
        answering.start()
        made = run("--url", f"http://127.0.0.1:{port}", "topic", "list", "--json")
        answering.join(PATIENCE_S)
    assert made.code == 6
    assert "Redis" in made.json["error"]["message"]


def _answer_like_redis(foreign: socket.socket) -> None:
    connection, _ = foreign.accept()
    with connection:
        connection.recv(4096)
        connection.sendall(b"-ERR unknown command 'GET'\r\n")


def test_bench_names_what_it_measured(run: Run, tmp_path: Path) -> None:
    made = run("bench", "-n", "200", "-s", "100", "--lone", "20", "--json")
    assert made.code == 0
    document = made.json
    assert {"version", "durability", "processor", "cores", "memory_mib", "python"} <= set(document)
    lone = next(one for one in document["results"] if one["workload"] == "lone publish")
    assert 0 < lone["p50_ms"] <= lone["p99_ms"] <= lone["p999_ms"]
    assert run("topic", "list", "--json").json == []


def test_doctor_ends_with_1_if_something_is_wrong(run: Run, tmp_path: Path) -> None:
    (tmp_path / "tms.toml").write_text("[server]\nprot = 1\n")
    made = run("doctor", "--config", "tms.toml", "--json")
    assert made.code == 1
    found = [one for one in made.json if one["check"] == "configuration"]
    assert "did you mean server.port" in found[0]["found"]
    checked = {one["check"] for one in made.json}
    assert {"open files", "clock", "environment", "data directory", "disk space"} <= checked


def test_doctor_says_who_has_the_port(run: Run, tmp_path: Path, url: str) -> None:
    port = url.rpartition(":")[2]
    (tmp_path / "tms.toml").write_text(f"data = 'd'\n[server]\nport = {port}\n")
    made = run("doctor", "--config", "tms.toml", "--all", "-o", "table")
    assert f"TMS itself listens at 127.0.0.1:{port}" in made.out.decode()


def test_wrong_configuration_ends_with_78_and_names_everything(run: Run, tmp_path: Path) -> None:
    (tmp_path / "tms.toml").write_text("[server]\nport = 'x'\nhots = 'y'\n")
    made = run("serve", "--config", "tms.toml", "--json")
    assert made.code == 78
    assert "tms.toml, line 2" in made.err
    assert "did you mean server.host" in made.err
