"""Log lines: one event a line, bounded, and safe from forgery."""

import json
import logging
from collections.abc import Iterator

import pytest

from tms.runtime.events import EventLog
from tms.server import access_log, logs


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Restore logging at the end."""
    loggers = [logging.getLogger(name) for name in ("", "tms", access_log.LOGGER)]
    handlers, levels = list(loggers[0].handlers), [one.level for one in loggers]
    yield
    loggers[0].handlers[:] = handlers
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


EVIL = "\r\n\x1b[31m{}\u2028\x00" + "é\U0001f600" * 5_000


@pytest.mark.parametrize("form", ["json", "text"])
def test_a_line_is_bounded_and_holds_no_control_characters(
    form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.configure("info", form)
    for facts in ({"why": "x" * 100_000}, {"why": EVIL}, {f"k{n}": EVIL for n in range(50)}):
        EventLog("tms.test").warning("happened", **facts)
    lines = capsys.readouterr().err.splitlines(keepends=True)
    assert len(lines) == 3
    for line in lines:
        assert len(line.encode()) <= logs.LINE_BYTES_MAX
        assert "happened" in line
        assert not any(ord(each) < 32 for each in line.rstrip("\n"))


def test_an_exception_is_one_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "json")
    try:
        raise RuntimeError(EVIL)
    except RuntimeError:
        EventLog("tms.test").exception("broke", request_id="r-1")
    [line] = capsys.readouterr().err.splitlines()
    assert len(line) < logs.LINE_BYTES_MAX
    assert json.loads(line)["request_id"] == "r-1"


def test_warnings_of_libraries_are_events_too(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "json")
    logging.getLogger("some.library").warning("%s happened", "this")
    logging.getLogger("some.library").info("not shown")
    [line] = capsys.readouterr().err.splitlines()
    assert json.loads(line)["event"] == "this happened"


def test_the_level_decides_what_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("error", "json")
    EventLog("tms.test").warning("not shown")
    EventLog("tms.test").error("shown")
    [line] = capsys.readouterr().err.splitlines()
    assert json.loads(line)["event"] == "shown"


@pytest.mark.parametrize(("asked_for", "shown"), [(False, 0), (True, 1)])
def test_an_access_log_is_there_whatever_the_level_is(
    asked_for: bool, shown: int, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.configure("error", "json", asked_for)
    EventLog(access_log.LOGGER).info("request", status=200)
    EventLog(access_log.LOGGER).debug("request", status=200)
    EventLog("tms.test").warning("not shown")
    assert len(capsys.readouterr().err.splitlines()) == shown
