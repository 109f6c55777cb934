"""The page Service: versions, configuration, log levels, backups."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.access_kit import People
from tests.cluster_kit import Instances, instances
from tests.faults.service import Service
from tests.http_kit import Served
from tests.pages_kit import PageReader
from tms.model.setting import ConfiguredSetting
from tms.runtime.version import VERSION

LOGGER = "tms.log.partition"


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("tms", LOGGER)]
    before = [one.level for one in loggers]
    yield
    for one, level in zip(loggers, before, strict=True):
        one.setLevel(level)


@pytest.fixture
def reader(served: Served) -> PageReader:
    return PageReader(served.url)


@pytest.fixture
def configured(served: Served) -> Iterator[list[ConfiguredSetting]]:
    """The settings of a service, which a test may change."""
    settings = served.service.settings
    settings += [
        ConfiguredSetting("data", "/var/lib/tms", "tms.toml, line 1"),
        ConfiguredSetting("server.port", "7070"),
        ConfiguredSetting("server.host", "<b>\u202e</b>", "flag --host"),
    ]
    yield settings
    settings.clear()


def test_versions_and_the_way_to_a_backup(reader: PageReader) -> None:
    page = reader.get("/console/service")
    assert page.status == 200
    assert f"TMS {VERSION} answers here." in page.text
    assert "tms backup --to DIRECTORY" in page.text
    assert "/v2/backups" in page.text


def test_settings_are_shown_with_their_sources(
    reader: PageReader, configured: list[ConfiguredSetting]
) -> None:
    page = reader.get("/console/service")
    assert "data /var/lib/tms tms.toml, line 1" in page.text
    assert "server.port" not in page.text, "defaults are left out"
    assert "<b>\u202e" not in page.html and "⟨U+202E⟩" in page.text
    everything = reader.get(page.links["show all settings"])
    assert "server.port 7070 default" in everything.text
    back = reader.get(everything.links["Show only those that were given"])
    assert "server.port" not in back.text


def test_a_service_of_another_program_says_so(reader: PageReader) -> None:
    assert "another program than tms serve" in reader.get("/console/service").text


def test_nothing_that_was_given_is_said(served: Served, reader: PageReader) -> None:
    served.service.settings.append(ConfiguredSetting("server.port", "7070"))
    try:
        assert "Nothing was given" in reader.get("/console/service").text
    finally:
        served.service.settings.clear()


def test_a_level_is_shown_before_it_is_set_and_set_for_a_while(reader: PageReader) -> None:
    plan = reader.get(f"/console/service/log?logger={LOGGER}&level=debug&period=1h")
    assert "log from debug on" in plan.text and "for an hour" in plan.text
    assert f"tms log level debug --logger {LOGGER} --for 1h" in plan.text
    assert '"for_s":3600' in plan.text
    assert logging.getLogger(LOGGER).level != logging.DEBUG, "nothing is set by looking"
    done = reader.send(plan.form("/log"))
    assert f"The level of {LOGGER} is debug" in done.text
    assert logging.getLogger(LOGGER).level == logging.DEBUG
    row = reader.get("/console/service").text.partition(LOGGER)[2][:60]
    assert "debug" in row and "Z" in row
    default = reader.get(f"/console/service/log?logger={LOGGER}&level=default&period=1h")
    assert "--for" not in default.text
    reader.send(default.form("/log"))
    assert logging.getLogger(LOGGER).level != logging.DEBUG


def test_a_level_until_the_next_start(reader: PageReader) -> None:
    plan = reader.get(f"/console/service/log?logger={LOGGER}&level=error&period=restart")
    assert "until the next start" in plan.text and "--for" not in plan.text
    assert reader.send(plan.form("/log")).status == 200
    assert logging.getLogger(LOGGER).level == logging.ERROR
    reader.send(plan.form("/log"), level="default")


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"level": "loud"}, 422),
        ({"period": "1y"}, 422),
        ({"logger": "tms.nothing.there"}, 404),
        ({"logger": "root"}, 404),
        ({"logger": "<script>"}, 404),
        ({"form": ""}, 403),
    ],
)
def test_levels_that_cannot_be(reader: PageReader, fields: dict[str, str], status: int) -> None:
    form = reader.get("/console/service/log").form("/log")
    before = logging.getLogger("tms").level
    answer = reader.post("/console/service/log", {**form.fields, **fields})
    assert answer.status == status
    assert "<script>" not in answer.html
    assert logging.getLogger("tms").level == before


def test_a_level_is_set_at_all_instances() -> None:
    with instances("a", "b") as both:
        reader = PageReader(both.url("a"))
        page = reader.get("/console/service")
        assert "as the instance a" in page.text and "2 instances" in page.text
        target = f"/console/service/log?logger={LOGGER}&level=debug&period=10m&everywhere=1"
        plan = reader.get(target)
        assert "at all instances" in plan.text and "--everywhere" in plan.text
        _asked_of_b(both)
        assert reader.send(plan.form("/log")).status == 200
        assert both.served["b"].service.metrics.answers["peers.set_log_level", 200] == 1
        reader.send(reader.get(target).form("/log"), level="default")


def _asked_of_b(both: Instances) -> None:
    assert both.served["b"].service.metrics.answers["peers.set_log_level", 200] == 0


def test_each_sees_and_does_only_what_it_may(guarded: People) -> None:
    guarded.served.service.settings.append(
        ConfiguredSetting("data", "/secret/place", "flag --data")
    )
    try:
        assert PageReader(guarded.url).get("/console/service").status == 401
        for principal, grants, levels, settings in (
            ("nothing", (), False, False),
            ("watching", ("observe service",), True, False),
            ("operating", ("operate service",), True, False),
            ("managing", ("all *",), True, True),
        ):
            token = guarded.token(principal, *grants)
            reader = PageReader(guarded.url, tms_session=token)
            page = reader.get("/console/service")
            assert page.status == 200
            assert ("By default" in page.text) is levels, principal
            assert ("/secret/place" in page.html) is settings, principal
            assert ("needs manage on service" in page.text) is not settings, principal
            may_set = principal in ("operating", "managing")
            assert ("Set a level…" in page.text) is may_set, principal
            form = reader.get(f"/console/service/log?logger={LOGGER}").form("/log")
            assert reader.send(form, level="default").status in ((200,) if may_set else (403,))
    finally:
        guarded.served.service.settings.clear()


@pytest.mark.parametrize("flags", [(), ("--workers", "2")])
def test_a_service_tells_how_it_was_started(tmp_path: Path, flags: tuple[str, ...]) -> None:
    with Service(tmp_path / "data", *flags) as service:
        page = PageReader(service.url).get("/console/service")
        assert f"data {tmp_path}/data flag --data" in page.text
        assert "server.log_format json flag --log-format" in page.text
        assert ("server.workers 2 flag --workers" in page.text) is bool(flags)
