"""The level of a service's log, set while it runs: for a while, at one instance or all; and wrong
levels, loggers and times."""

import json
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from tests.cli.test_cli import Run, data, run  # noqa: F401
from tests.clocks import START_MS, ManualClock
from tests.http_kit import Served, serving
from tests.waiting import PATIENCE_S, until
from tms.errors import Invalid, NotFound, Unavailable
from tms.model.log_level import FOR_S_MAX, LogLevel
from tms.server.log_levels import LogLevels
from tms.server.service import AccessLimits, NetworkOptions

# ruff: noqa: F811
PATH = "/v2/log/levels"
BELOW = "tms.log.partition"
TMS, PART = logging.getLogger("tms"), logging.getLogger(BELOW)


@pytest.fixture(autouse=True)
def as_a_service() -> Iterator[None]:
    """Set the level with which a service begins, and restore the one before."""
    before = TMS.level, PART.level
    TMS.setLevel(logging.INFO)
    PART.setLevel(logging.NOTSET)
    yield
    TMS.setLevel(before[0])
    PART.setLevel(before[1])


class Timers:
    """Timers that fire only when a test says so."""

    def __init__(self) -> None:
        self.all: list[Any] = []

    def __call__(self, seconds: float, work: Callable[..., None], given: tuple[Any, ...]) -> Any:
        timer = threading.Thread(target=work, args=given)
        timer.cancel = lambda: cancelled.append(timer)  # type: ignore[attr-defined]
        timer.seconds = seconds  # type: ignore[attr-defined]
        cancelled: list[Any] = []
        timer.cancelled = cancelled  # type: ignore[attr-defined]
        start, timer.start = timer.start, lambda: None  # type: ignore[method-assign]
        timer.ring = lambda: (start(), timer.join(PATIENCE_S))  # type: ignore[attr-defined]
        self.all.append(timer)
        return timer


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> Timers:
    timers = Timers()
    monkeypatch.setattr("tms.server.log_levels.threading.Timer", timers)
    return timers


def alone() -> LogLevels:
    return LogLevels(ManualClock())


def test_a_level_is_set_until_it_is_the_default_again() -> None:
    levels = alone()
    assert levels.levels() == [LogLevel("tms", "info", "info")]
    assert levels.set_level("debug") == [LogLevel("tms", "debug", "info")]
    assert TMS.level == logging.DEBUG
    assert levels.set_level("error", BELOW) == [LogLevel(BELOW, "error", "")]
    assert PART.level == logging.ERROR
    assert [(one.logger, one.level) for one in levels.levels()] == [
        ("tms", "debug"),
        (BELOW, "error"),
    ]
    assert levels.set_level("default", BELOW) == [LogLevel(BELOW, "debug", "")]
    assert levels.set_level("default") == [LogLevel("tms", "info", "info")]
    assert (TMS.level, PART.level) == (logging.INFO, logging.NOTSET)


def test_a_level_for_a_while_goes_back_by_itself(
    timers: Timers, caplog: pytest.LogCaptureFixture
) -> None:
    levels = alone()
    [level] = levels.set_level("debug", for_s=600)
    assert level == LogLevel("tms", "debug", "info", START_MS + 600_000)
    assert levels.levels() == [level] and timers.all[0].seconds == 600
    timers.all[0].ring()
    assert TMS.level == logging.INFO and levels.levels() == [LogLevel("tms", "info", "info")]
    said = [one.getMessage() for one in caplog.records if one.name == "tms.server"]
    assert said == [
        "log_level_changed logger='tms' level='debug' for_s=600",
        "log_level_changed logger='tms' level='default' for_s=None",
    ]


def test_the_level_that_was_set_last_counts_and_the_default_is_the_first(timers: Timers) -> None:
    levels = alone()
    levels.set_level("debug", for_s=600)
    levels.set_level("error", for_s=60)
    first, second = timers.all
    assert first.cancelled == [first]
    first.ring()  # the cancel came too late
    assert TMS.level == logging.ERROR
    second.ring()
    assert TMS.level == logging.INFO
    levels.set_level("debug", for_s=600)
    levels.set_level("warning")
    timers.all[-1].ring()
    assert TMS.level == logging.WARNING


def test_what_is_closed_leaves_all_levels_as_they_were(timers: Timers) -> None:
    levels = alone()
    levels.set_level("debug", for_s=600)
    levels.set_level("error", BELOW)
    levels.close()
    assert (TMS.level, PART.level) == (logging.INFO, logging.NOTSET)
    assert timers.all[0].cancelled == [timers.all[0]]


def test_a_real_timer_rings() -> None:
    levels = alone()
    levels.set_level("debug", for_s=0.05)
    assert TMS.level == logging.DEBUG
    until(lambda: TMS.level == logging.INFO)


def below() -> list[str]:
    """The existing loggers of TMS."""
    return sorted(one for one in logging.root.manager.loggerDict if one.startswith("tms"))


class Instances(NamedTuple):
    """A cluster."""

    id: str
    all: "list[Other]"

    def others(self) -> "list[Other]":
        return self.all


class Other:
    """Another instance."""

    def __init__(self, away: bool = False) -> None:
        self.away = away
        self.asked: list[tuple[object, ...]] = []

    def set_log_level(self, level: str, logger: str, for_s: float | None) -> LogLevel:
        if self.away:
            raise Unavailable("It is away.")
        self.asked.append((level, logger, for_s))
        return LogLevel(logger, level, "info", None, "b")


def test_all_instances_are_asked_if_that_is_wanted() -> None:
    others = [Other(), Other(away=True)]
    levels = LogLevels(ManualClock(), Instances("a", others))
    assert [one.instance for one in levels.set_level("debug")] == ["a"] and not others[0].asked
    with pytest.raises(Unavailable):
        levels.set_level("debug", "tms", None, everywhere=True)
    assert others.pop(0).asked == [("debug", "tms", None)] and TMS.level == logging.DEBUG
    others[:] = [Other()]
    found = levels.set_level("error", "tms", None, everywhere=True)
    assert [(one.instance, one.level) for one in found] == [("a", "error"), ("b", "error")]


BAD: list[tuple[dict[str, Any], str]] = [
    ({"level": "loud"}, "level"),
    ({"level": "DEBUG"}, "level"),
    ({"level": ""}, "level"),
    ({"level": "debug", "for_s": 0}, "for_s"),
    ({"level": "debug", "for_s": -1}, "for_s"),
    ({"level": "debug", "for_s": FOR_S_MAX + 1}, "for_s"),
    ({"level": "debug", "for_s": 1e300}, "for_s"),
    ({"level": "default", "for_s": 60}, "for_s"),
]
UNKNOWN = [
    "tms.que",
    "",
    "root",
    "kazoo",
    "tms\r\nforged",
    "tms." + "x" * 10_000,
]


@pytest.mark.parametrize(("given", "field"), BAD, ids=str)
def test_what_is_no_level_and_no_time_is_refused(given: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as caught:
        alone().set_level(**given)
    assert caught.value.details["field"] == field and len(str(caught.value)) < 500
    assert TMS.level == logging.INFO


@pytest.mark.parametrize("logger", UNKNOWN, ids=lambda name: repr(name)[:20])
def test_a_logger_that_there_is_not_is_not_made(logger: str, served: Served) -> None:
    before = below()
    with pytest.raises(NotFound) as caught:
        alone().set_level("debug", logger)
    assert len(str(caught.value)) < 500
    with served.connect() as client:
        body = json.dumps({"level": "debug", "logger": logger}).encode()
        answer = client.request("PUT", PATH, body)
    assert (answer.status, answer.problem) == (404, "not-found")
    assert below() == before


def test_an_error_names_loggers_like_the_one_that_was_meant() -> None:
    with pytest.raises(NotFound, match=r"those like it: .*tms\.log\.partition"):
        alone().set_level("debug", "tms.log.partitions")


# -- over HTTP, and from the command line --------------------------------------------------------


@pytest.fixture
def served() -> Iterator[Served]:
    with serving() as served:
        yield served


def test_a_level_is_set_and_shown_over_http(served: Served) -> None:
    with served.connect() as client:
        info = {"logger": "tms", "level": "info", "default": "info"}
        info |= {"until_ms": None, "instance": ""}
        assert client.request("GET", PATH).json == {"levels": [info]}
        answer = client.request("PUT", PATH, b'{"level": "debug"}')
        assert answer.status == 200 and answer.json == {"levels": [info | {"level": "debug"}]}
        assert TMS.level == logging.DEBUG
    served.stop()
    served.thread.join(PATIENCE_S)
    assert TMS.level == logging.INFO


@pytest.mark.parametrize(
    ("body", "status", "problem"),
    [
        *[(given, 422, "invalid") for given, _ in BAD],
        ({}, 422, "invalid"),
        ({"level": None}, 422, "invalid"),
        ({"level": 3}, 422, "invalid"),
        ({"level": "debug", "for_s": "10m"}, 422, "invalid"),
        ({"level": "debug", "everywhere": 1}, 422, "invalid"),
        ({"level": "debug", "loger": "tms"}, 422, "invalid"),
    ],
    ids=str,
)
def test_bad_input_is_a_problem(
    body: dict[str, Any], status: int, problem: str, served: Served
) -> None:
    with served.connect() as client:
        answer = client.request("PUT", PATH, json.dumps(body).encode())
    assert (answer.status, answer.problem) == (status, problem)
    assert TMS.level == logging.INFO


def test_it_takes_who_may_operate_the_service() -> None:
    with serving(network=NetworkOptions(AccessLimits())) as served, served.connect() as client:
        access = served.service.engine.access
        token = access.create_token("ann").token
        for verb, statuses in (
            ("publish", (200, 403)),  # every verb includes observing
            ("operate", (200, 200)),
        ):
            access.add_grant("ann", verb, "service")
            given = {"Authorization": f"Bearer {token}"}
            get = client.request("GET", PATH, **given).status
            put = client.request("PUT", PATH, b'{"level": "debug"}', **given).status
            assert (get, put) == statuses


def test_the_command_sets_and_shows_levels(served: Served, run: Run) -> None:
    url = ("--url", served.url)
    shown = run("log", "level", *url)
    assert shown.code == 0 and b"tms" in shown.out and b"info" in shown.out
    done = run("log", "level", "debug", "--logger", BELOW, "--for", "10m", "--json", *url)
    [level] = json.loads(done.out)
    assert (level["logger"], level["level"], level["default"]) == (BELOW, "debug", "")
    assert level["until_ms"] and PART.level == logging.DEBUG
    assert run("log", "level", "default", "--logger", BELOW, *url).code == 0
    assert PART.level == logging.NOTSET


@pytest.mark.parametrize(
    "words",
    [
        ("loud",),
        ("debug", "--for", "-1m"),
        ("debug", "--for", "0s"),
        ("debug", "--for", "8d"),
        ("--for", "10m"),
        ("--logger", BELOW),
        ("--everywhere",),
    ],
    ids=" ".join,
)
def test_the_command_refuses_what_makes_no_sense(
    words: tuple[str, ...], served: Served, run: Run
) -> None:
    url = served.url
    assert run("log", "level", *words, "--url", url).code == 2
    assert run("log", "level", "debug", "--logger", "tms.nothing", "--url", url).code == 3
    assert TMS.level == logging.INFO


def test_a_data_directory_has_no_service_whose_log_it_is(run: Run, tmp_path: Any) -> None:
    done = run("log", "level", "--data", str(tmp_path / "data"))
    assert done.code == 78 and "--url" in done.err
