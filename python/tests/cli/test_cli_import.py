"""`tms export` and `tms import`: the messages of a topic go through a file and come back
unchanged."""

import bz2
import gzip
import json
import lzma
import os
import signal
import stat
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tms
from tests.cli.test_cli import Run, data, greetings, run  # noqa: F401
from tests.waiting import PATIENCE_S
from tms.client import transaction
from tms.client.client import Bus
from tms.model.ids import TIME_MS_MAX
from tms.model.keys import Partitioner
from tms.model.message import Headers
from tms.spark.rows import WantedColumns, arrow_schema

# ruff: noqa: F811

BINARY = bytes(range(256))
Content = list[tuple[int, bytes | None, bytes | None, dict[str, bytes]]]


def content(bus: Bus, topic: str) -> Content:
    """The messages of a topic: partition, key, value, headers."""
    return sorted(
        (
            (one.partition, one.key, one.value, dict(one.headers))
            for one in bus.consumer(topic, stop_at_end=True)
        ),
        key=repr,
    )


@pytest.fixture
def varied(data: Path) -> Content:
    """A topic with all kinds of messages in three partitions, and an empty topic beside it."""
    with tms.open(data) as bus:
        for name in ("varied", "copies"):
            bus.create_topic(name, partitions=3, message_bytes_max=1 << 20)
        bus.publish("varied", b"text", key=b"ann", headers={"lang": b"en"}, partition=1)
        bus.publish("varied", BINARY, key=BINARY, headers={"raw": BINARY}, partition=2)
        bus.publish("varied", None, key=b"gone", partition=0)
        bus.publish("varied", b"", key=b"", headers={"empty": b""}, partition=0)
        bus.publish("varied", b"no key", partition=2)
        bus.publish("varied", 'Zürich \u202e "\n\r\0'.encode(), partition=0)
        bus.publish_many("varied", [b"%d" % number for number in range(1_000)], partition=1)
        return content(bus, "varied")


@pytest.mark.parametrize("form", ["ndjson", "parquet"])
def test_a_topic_comes_back_from_a_file_as_it_was(
    form: str, run: Run, data: Path, varied: Content, tmp_path: Path
) -> None:
    file = tmp_path / f"varied.{form}"
    assert run("export", "varied", "--to", str(file)).code == 0
    ended = run("import", "copies", str(file), "--json")
    assert (ended.code, ended.json[0]["messages"]) == (0, len(varied)), ended.err
    with tms.open(data) as bus:
        assert content(bus, "copies") == varied
    assert [path.name for path in tmp_path.iterdir()].count(file.name) == 1
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("form", ["ndjson", "parquet"])
def test_a_topic_goes_through_a_pipe(form: str, run: Run, data: Path, varied: Content) -> None:
    exported = run("export", "varied", "--format", form)
    assert run("import", "copies", "-", "--format", form, stdin=exported.out).code == 0
    with tms.open(data) as bus:
        assert content(bus, "copies") == varied


def test_what_consume_prints_can_be_published_again(run: Run, data: Path, varied: Content) -> None:
    printed = run("consume", "varied", "--exit-at-end", "--json")
    assert printed.out == run("export", "varied").out
    assert run("import", "copies", stdin=printed.out).code == 0
    with tms.open(data) as bus:
        assert content(bus, "copies") == varied


def test_a_file_is_imported_once(run: Run, data: Path, varied: Content, tmp_path: Path) -> None:
    file = tmp_path / "varied.ndjson"
    run("export", "varied", "--to", str(file))
    assert run("import", "copies", str(file), "--json").json[0]["imported"]
    again = run("import", "copies", str(file), str(file), "--json")
    assert [one["imported"] for one in again.json] == [False, False]
    assert not run("import", "copies", "--json", stdin=file.read_bytes()).json[0]["imported"]
    with tms.open(data) as bus:
        assert content(bus, "copies") == varied


def test_an_import_that_was_interrupted_left_nothing(
    run: Run, data: Path, varied: Content, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported = run("export", "varied").out
    send, sent = tms.Transaction.send, 0
    before = signal.getsignal(signal.SIGINT)

    def interrupted(*given: object) -> None:
        nonlocal sent
        sent += 1
        if sent == 500:
            raise KeyboardInterrupt
        send(*given)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(tms.Transaction, "send", interrupted)
        assert run("import", "copies", stdin=exported).code == 130
    assert signal.getsignal(signal.SIGINT) is before  # it belongs to the process
    with tms.open(data) as bus:
        assert content(bus, "copies") == []
    assert run("import", "copies", stdin=exported).code == 0
    with tms.open(data) as bus:
        assert content(bus, "copies") == varied


BROKEN = {
    "{": "truncated",
    "[1]": "Expected `object`",
    '{"key": "k"}': "missing required field `value`",
    '{"value": 1}': "Expected `str | null`",
    '{"value": "v", "keys": "k"}': "unknown field",
    '{"value": "v", "encoding": "hex"}': "Invalid enum value",
    '{"value": "*", "encoding": "base64"}': "base64",
    '{"value": "v", "partition": 3}': "partitions 0 to 2, not 3; with --by-key the key decides",
    '{"value": "v", "partition": -1}': "partitions 0 to 2",
    '{"value": "v", "headers": {"": "x"}}': "header",
    '{"value": "%s"}' % ("x" * (2 << 20)): "bytes",
}


@pytest.mark.parametrize("line", BROKEN, ids=lambda line: str(line)[:24])
def test_a_broken_line_is_named_and_nothing_is_imported(
    line: str, run: Run, data: Path, varied: Content, tmp_path: Path
) -> None:
    good, bad = tmp_path / "good.ndjson", tmp_path / "bad.ndjson"
    good.write_text('{"value": "v"}\n')
    bad.write_text(f'{{"value": "v"}}\n{line}\n{{"value": "v"}}\n')
    ended = run("import", "copies", str(good), str(bad))
    assert ended.code == 2
    assert f"{bad}, line 2: " in ended.err
    assert BROKEN[line] in ended.err
    ended = run("import", "copies", stdin=bad.read_bytes())
    assert "standard input, line 2: " in ended.err
    with tms.open(data) as bus:
        assert content(bus, "copies") == []


def test_many_broken_lines_are_counted_and_the_first_are_named(run: Run, varied: Content) -> None:
    ended = run("import", "copies", stdin=b"{x\n" * 100)
    assert "broken: 100" in ended.err
    assert "line 20:" in ended.err
    assert "line 21:" not in ended.err
    assert "and 80 more" in ended.err


@pytest.mark.parametrize("damage", ["text", "half", "columns"])
def test_a_file_that_is_no_parquet_is_refused(
    damage: str, run: Run, data: Path, varied: Content, tmp_path: Path
) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "some.parquet"
    run("export", "varied", "--to", str(file))
    if damage == "text":
        file.write_text("hello")
    elif damage == "half":
        file.write_bytes(file.read_bytes()[:-100])
    else:
        pq.write_table(pa.table({"value": [1, 2]}), file)
    ended = run("import", "copies", str(file))
    assert ended.code == 2, ended.err
    assert str(file) in ended.err
    with tms.open(data) as bus:
        assert content(bus, "copies") == []


def test_an_exported_parquet_file_has_the_rows_that_spark_sees(
    run: Run, varied: Content, tmp_path: Path
) -> None:
    file = tmp_path / "varied.parquet"
    run("export", "varied", "--to", str(file))
    table = pq.read_table(file)
    everything = WantedColumns(headers=True, message_id=True, event_time=True)
    assert table.schema.equals(arrow_schema(everything))
    row = next(row for row in table.to_pylist() if row["key"] == b"ann")
    assert row["headers"] == [{"key": "lang", "value": b"en"}]
    assert (row["topic"], row["partition"], row["timestampType"]) == ("varied", 1, 1)
    assert row["id"].startswith(f"{int(row['timestamp'].timestamp() * 1000):016x}")


def columns(name: str) -> dict[str, pa.Array]:
    """Two messages as various programs write them."""
    keys, values = ["ann", None], ["1", "2"]
    spark = pa.list_(pa.struct([("key", pa.utf8()), ("value", pa.binary())]))
    cells: dict[str, dict[str, pa.Array]] = {
        "text": {"key": pa.array(keys), "value": pa.array(values, pa.large_utf8())},
        "dictionary": {
            "key": pa.array(keys).dictionary_encode(),
            "value": pa.array(values, pa.binary()).dictionary_encode(),
            "partition": pa.array([0, 0], pa.int64()),
        },
        "fixed": {
            "key": pa.array(keys),
            "value": pa.array([b"1", b"2"], pa.binary(1)),
            "partition": pa.array([None, None]),
            "extra": pa.array([1.5, 2.5]),
        },
        "spark": {"headers": pa.array([[{"key": "h", "value": b"x"}], None], spark)},
        "map": {"headers": pa.array([[("h", "x")], []], pa.map_(pa.utf8(), pa.utf8()))},
        "struct": {"headers": pa.array([{"h": "x", "i": None}, None])},
    }
    return {"key": pa.array(keys), "value": pa.array(values), **cells[name]}


@pytest.mark.parametrize("name", ["text", "dictionary", "fixed", "spark", "map", "struct"])
def test_parquet_of_other_programs_is_imported(
    name: str, run: Run, data: Path, varied: Content, tmp_path: Path
) -> None:
    file = tmp_path / "other.parquet"
    pq.write_table(pa.table(columns(name)), file, use_dictionary=True)
    ended = run("import", "copies", str(file))
    assert ended.code == 0, ended.err
    headers = {"h": b"x"} if "headers" in columns(name) else {}
    with tms.open(data) as bus:
        found = {value: (key, more) for _, key, value, more in content(bus, "copies")}
    assert found == {b"1": (b"ann", headers), b"2": (None, {})}


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"value": [1, 2]}, "type int64, and not binary or text. Convert it: python -c"),
        ({"value": ["1"], "partition": [0.5]}, "type double, and not an integer"),
        ({"value": ["1"], "headers": [["x"]]}, "list<struct<key, value>>, map or struct"),
        ({"body": ["1"]}, "It has no column `value`, but body. Name the column"),
        (
            {"value": ["1"], "headers": [[{"key": "h", "value": "1"}, {"key": "h", "value": "2"}]]},
            "row 1: its header 'h' stands twice",
        ),
        ({"value": ["1"], "headers": [[{"key": None, "value": "1"}]]}, "headers has no name"),
        ({"value": ["1"], "event_time": ["2026"]}, "type string, and not a timestamp"),
        ({"value": ["1"], "event_time": [datetime(1969, 1, 1, tzinfo=UTC)]}, "An event time is"),
    ],
)
def test_a_column_that_cannot_be_imported_is_named_with_what_is_allowed(
    table: dict[str, list[object]], said: str, run: Run, varied: Content, tmp_path: Path
) -> None:
    file = tmp_path / "wrong.parquet"
    pq.write_table(pa.table(table), file)
    ended = run("import", "copies", str(file))
    assert (ended.code, said.replace("row 1", "line 1") in ended.err) == (2, True), ended.err


def gzipped(content: bytes) -> bytes:
    """Gzipped bytes without a timestamp: tests are named after them."""
    return gzip.compress(content, mtime=0)


LINES = b'{"value": "v", "key": "k"}\n{"value": "w"}\n'


@pytest.mark.parametrize(
    "packed",
    [b"\xef\xbb\xbf" + LINES, gzipped(LINES), gzipped(b"\xef\xbb\xbf" + LINES)],
    ids=["byte order mark", "gzip", "both"],
)
def test_lines_are_imported_behind_a_byte_order_mark_and_from_gzip(
    packed: bytes, run: Run, data: Path, varied: Content
) -> None:
    ended = run("import", "copies", stdin=packed)
    assert ended.code == 0, ended.err
    with tms.open(data) as bus:
        assert [one[1:3] for one in content(bus, "copies")] == [(None, b"w"), (b"k", b"v")]


CSV = b"key,value\nk,v\n"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (LINES.decode().encode("utf-16"), "UTF-16; convert it: iconv -f UTF-16 -t UTF-8 FILE"),
        (LINES.decode().encode("utf-16-le"), "iconv -f UTF-16LE"),
        (LINES.decode().encode("utf-16-be"), "iconv -f UTF-16BE"),
        (CSV, "It is CSV; convert it: python -c 'import csv, json, sys"),
        (gzipped(CSV), "It is CSV"),
        (b"hello world\n", "text without JSON; publish each line: tms publish TOPIC FILE"),
        (b'[{"value": "v"}]', "a JSON array; convert it: jq -c '.[]' FILE | tms import TOPIC"),
        (b'{\n "value": "v"\n}\n', "JSON over several lines; convert it: jq -c ."),
        (bz2.compress(LINES), "compressed with bzip2; convert it: bzip2 -dc FILE"),
        (lzma.compress(LINES), "compressed with xz; convert it: xz -dc FILE"),
        (b"\x28\xb5\x2f\xfd" + bytes(9), "compressed with zstd; convert it: zstd -dc FILE"),
        (b"PK\x03\x04" + bytes(9), "a zip archive; convert it: unzip -p FILE"),
        (b"ARROW1" + bytes(9), "an Arrow file; convert it: python -c 'import pyarrow.feather"),
        (b"ORC" + bytes(9), "an ORC file; convert it: python -c 'import pyarrow.orc"),
        (gzipped(LINES)[:-12], "damaged"),
        (gzipped(b"PAR1" + bytes(9)), "It is Parquet; convert it: gunzip FILE"),
    ],
)
def test_a_file_of_another_kind_is_refused_with_the_command_that_converts_it(
    given: bytes, said: str, run: Run, data: Path, varied: Content
) -> None:
    ended = run("import", "copies", stdin=given)
    assert (ended.code, said in ended.err) == (2, True), ended.err
    with tms.open(data) as bus:
        assert content(bus, "copies") == []


def test_the_command_for_csv_makes_lines_that_are_imported(
    run: Run, data: Path, varied: Content, tmp_path: Path
) -> None:
    file = tmp_path / "some.csv"
    file.write_bytes(CSV)
    told = run("import", "copies", str(file)).err
    command = "python -c " + told.partition("python -c ")[2].partition(" | tms import")[0]
    command = command.replace("python", sys.executable, 1).replace("FILE", str(file))
    lines = subprocess.run(["sh", "-c", command], capture_output=True, check=True).stdout
    assert run("import", "copies", stdin=lines).code == 0
    with tms.open(data) as bus:
        assert [one[1:3] for one in content(bus, "copies")] == [(b"k", b"v")]


@pytest.mark.parametrize(
    "line",
    ['{"value": "v", "value": "w"}', '{"value": "v", "headers": {"h": "1", "h": "2"}}'],
)
def test_a_name_that_stands_twice_in_an_object_is_refused(
    line: str, run: Run, varied: Content
) -> None:
    ended = run("import", "copies", stdin=line.encode())
    assert ended.code == 2 and "line 1: " in ended.err and "appears twice" in ended.err


def test_by_key_the_partitions_are_those_of_the_topic(
    run: Run, data: Path, varied: Content
) -> None:
    with tms.open(data) as bus:
        bus.create_topic("narrow")
    exported = run("export", "varied").out
    assert run("import", "narrow", stdin=exported).code == 2
    assert run("import", "narrow", "--by-key", stdin=exported).code == 0
    with tms.open(data) as bus:
        assert len(content(bus, "narrow")) == len(varied)


@pytest.mark.parametrize("partitioner", Partitioner)
def test_by_key_the_partitioner_of_the_topic_decides(
    run: Run, data: Path, partitioner: Partitioner
) -> None:
    made = run("topic", "create", "kafka", "-p", "7", "--partitioner", partitioner.value, "--json")
    assert json.loads(made.out)["settings"]["partitioner"] == partitioner
    assert partitioner in run("topic", "describe", "kafka").out.decode()
    lines = [{"value": "v", "key": f"key {n}", "partition": 0} for n in range(20)]
    text = "\n".join(map(json.dumps, lines)).encode()
    assert run("import", "kafka", "--by-key", stdin=text).code == 0
    with tms.open(data) as bus:
        found = {one.key: one.partition for one in bus.consumer("kafka", stop_at_end=True)}
    keys = [b"key %d" % n for n in range(20)]
    assert found == {key: partitioner.partition_of(key, 7) for key in keys}


def test_an_export_begins_and_ends_where_it_is_said(run: Run, greetings: Path) -> None:
    def exported(*options: str) -> list[str | None]:
        lines = run("export", "greetings", *options).out.splitlines()
        return [json.loads(line)["key"] for line in lines]

    assert exported() == ["ann", "bob", "cy"]
    assert exported("--start", "offset:1", "--end", "offset:2") == ["bob"]
    assert exported("--end", "offset:1") == ["ann", "cy"]
    assert exported("--end", "earliest") == []
    assert exported("--end", "2026-01-01") == []
    assert exported("--start", "latest") == []


@pytest.mark.parametrize("form", ["ndjson", "parquet"])
def test_an_export_is_written_into_a_pipe_as_it_comes(
    form: str, run: Run, data: Path, varied: Content, tmp_path: Path
) -> None:
    pipe, read = tmp_path / "pipe", list[bytes]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    assert run("export", "varied", "--format", form, "--to", str(pipe)).code == 0
    reader.join(PATIENCE_S)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert run("import", "copies", "-", "--format", form, stdin=read[0]).code == 0
    with tms.open(data) as bus:
        assert content(bus, "copies") == varied


def test_an_export_replaces_what_a_link_names_and_keeps_the_mode(
    run: Run, greetings: Path, tmp_path: Path
) -> None:
    file, link = tmp_path / "kept" / "file.ndjson", tmp_path / "link.ndjson"
    file.parent.mkdir()
    file.write_text("before")
    file.chmod(0o640)
    link.symlink_to(Path("kept") / "file.ndjson")
    assert run("export", "greetings", "--to", str(link)).code == 0
    assert link.is_symlink() and file.read_bytes() == run("export", "greetings").out
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    missing = tmp_path / "to-be.ndjson"
    missing.symlink_to(Path("kept") / "new.ndjson")
    assert run("export", "greetings", "--to", str(missing)).code == 0
    assert missing.is_symlink() and (tmp_path / "kept" / "new.ndjson").is_file()
    assert not list(file.parent.glob(".*"))


def test_an_export_to_standard_output_by_another_name_prints_messages_alone(
    run: Run, greetings: Path, tmp_path: Path
) -> None:
    output = tmp_path / "stdout"  # in place of /dev/stdout, which a bug would destroy
    output.symlink_to("/proc/self/fd/1")
    printed = run("export", "greetings", "--to", str(output))
    assert (printed.code, printed.out) == (0, run("export", "greetings").out)
    assert output.is_symlink()


def test_an_export_to_a_device_is_written_to_it(run: Run, greetings: Path) -> None:
    main, terminal = os.openpty()
    try:  # a bug would fail here: no process may make files beside a terminal
        assert run("export", "greetings", "--to", os.ttyname(terminal)).code == 0
        assert os.read(main, 4).startswith(b'{"')
        assert stat.S_ISCHR(os.stat(os.ttyname(terminal)).st_mode)
    finally:
        os.close(terminal)
        os.close(main)


def test_a_failed_export_leaves_the_file_as_it_was(
    run: Run, greetings: Path, tmp_path: Path
) -> None:
    file = tmp_path / "kept.ndjson"
    file.write_text("before")
    assert run("export", "missing", "--to", str(file)).code == 3
    assert file.read_text() == "before"
    assert not list(tmp_path.glob(".*"))


def test_a_file_too_large_for_a_transaction_is_refused_before_publishing(
    run: Run, data: Path, varied: Content, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("export", "varied", "--to", str(tmp_path / "varied.ndjson"))
    monkeypatch.setattr(transaction, "TRANSACTION_BYTES", 2_000)
    ended = run("import", "copies", str(tmp_path / "varied.ndjson"))
    assert ended.code == 1
    assert "split the file" in ended.err
    with tms.open(data) as bus:
        assert content(bus, "copies") == []


@pytest.mark.parametrize("suffix", ["ndjson", "parquet"])
def test_event_times_and_headers_without_a_value_are_exported_and_imported(
    suffix: str, run: Run, data: Path, tmp_path: Path
) -> None:
    headers: Headers = {"null": None, "empty": b"", "set": b"1"}
    assert run("topic", "create", "timed").code == run("topic", "create", "again").code == 0
    published = run("publish", "timed", "--event-time", "1970-01-01T00:00:01Z", stdin=b"first\n")
    assert published.code == 0
    with tms.open(data) as bus:
        bus.publish("timed", b"second", headers=headers)
        bus.publish("timed", b"third", headers=headers, event_time_ms=TIME_MS_MAX)
    file = tmp_path / f"timed.{suffix}"
    assert run("export", "timed", "--to", str(file)).code == 0
    assert run("import", "again", str(file)).code == 0
    for topic in ("timed", "again"):
        with tms.open(data) as bus:
            found = [
                (one.value, one.event_time_ms, one.headers)
                for one in bus.consumer(topic, stop_at_end=True)
            ]
        assert found == [
            (b"first", 1_000, {}),
            (b"second", None, headers),
            (b"third", TIME_MS_MAX, headers),
        ]
    shown = run("consume", "again", "-e", "--format", r"%v %E %h\n").out
    assert shown.splitlines() == [
        b"first 1000 ",
        b"second  null,empty=,set=1",
        b"third %d null,empty=,set=1" % TIME_MS_MAX,
    ]
    lines = [json.loads(line) for line in run("consume", "again", "-e", "--json").out.splitlines()]
    assert [line.get("event_time_ms") for line in lines] == [1_000, None, TIME_MS_MAX]
    assert lines[1]["headers"] == {"null": None, "empty": "", "set": "1"}
