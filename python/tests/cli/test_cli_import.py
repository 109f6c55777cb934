"""`tms export` and `tms import`: what a topic has goes through a file and comes back the same."""

import json
import os
import signal
import stat
import threading
from pathlib import Path

import pytest

import tms
from tests.cli.test_cli import Run, data, greetings, run  # noqa: F401
from tests.waiting import PATIENCE_S
from tms.client import transaction
from tms.client.client import Bus

# ruff: noqa: F811

BINARY = bytes(range(256))
Content = list[tuple[int, bytes | None, bytes | None, dict[str, bytes]]]


def content(bus: Bus, topic: str) -> Content:
    """What a topic has: partition, key, value, headers."""
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
    assert signal.getsignal(signal.SIGINT) is before  # the process's own matter
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
    ended = run("import", "copies", stdin=b"x\n" * 100)
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
    output = tmp_path / "stdout"  # as /dev/stdout, which a mistake would destroy
    output.symlink_to("/proc/self/fd/1")
    printed = run("export", "greetings", "--to", str(output))
    assert (printed.code, printed.out) == (0, run("export", "greetings").out)
    assert output.is_symlink()


def test_an_export_to_a_device_is_written_to_it(run: Run, greetings: Path) -> None:
    main, terminal = os.openpty()
    try:  # a mistake would fail here, because nobody may make files beside a terminal
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


def test_a_file_that_one_transaction_does_not_take_is_refused_before_anything_is_published(
    run: Run, data: Path, varied: Content, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("export", "varied", "--to", str(tmp_path / "varied.ndjson"))
    monkeypatch.setattr(transaction, "TRANSACTION_BYTES", 2_000)
    ended = run("import", "copies", str(tmp_path / "varied.ndjson"))
    assert ended.code == 1
    assert "split the file" in ended.err
    with tms.open(data) as bus:
        assert content(bus, "copies") == []
