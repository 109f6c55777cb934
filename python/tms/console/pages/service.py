"""The service: its versions, its configuration with sources, levels of its log, backups.

A level is shown with its effect before it is set; it is set for a while unless the visitor wants
otherwise.
"""

from itertools import groupby
from typing import Any, NamedTuple

from tms.console.visit import DONE, Notice, PageAnswer, PageRoute, Redirect, Visit, WebPage, path_of
from tms.errors import Invalid
from tms.model.access import Access
from tms.model.cluster import ClusterView
from tms.model.log_level import DEFAULT_LEVEL, LEVELS, LOGGER
from tms.model.setting import ConfiguredSetting

SERVICE = "service"
PERIODS = {"10m": ("10 minutes", 600), "1h": ("an hour", 3_600), "1d": ("a day", 86_400)}
FOREVER = "restart"


class LevelChange(NamedTuple):
    """A level of a logger that a visitor wants. `period`: one of `PERIODS`, or `FOREVER`."""

    logger: str
    level: str
    period: str
    everywhere: bool

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the operation."""
        given: dict[str, Any] = {"level": self.level, "logger": self.logger}
        if self.period in PERIODS and self.level != DEFAULT_LEVEL:
            given["for_s"] = float(PERIODS[self.period][1])
        return given | {"everywhere": self.everywhere}

    @property
    def command(self) -> list[str]:
        """The command behind `tms` that does the same."""
        words = ["log", "level", self.level, "--logger", self.logger]
        words += ["--for", self.period] if "for_s" in self.arguments else []
        return [*words, "--everywhere"] if self.everywhere else words


async def show_service(visit: Visit) -> PageAnswer:
    """Versions, configuration, log levels, backups."""
    view: ClusterView = await visit.ask("cluster.view")
    may_manage = visit.may(Access.MANAGE, SERVICE)
    levels, levels_error = await visit.tried("log.levels")
    settings = settings_error = None
    if may_manage:  # else the audit log would be full of refusals
        settings, settings_error = await visit.tried("configuration.settings")
    only_given = visit.asked("all") != "1"
    values = {
        "view": view,
        "versions": sorted({one.version for one in view.instances}),
        "sections": _sections(settings or [], only_given),
        "has_settings": bool(settings),
        "settings_error": settings_error,
        "only_given": only_given,
        "levels": levels,
        "levels_error": levels_error,
        "choices": {
            "levels": (*LEVELS, DEFAULT_LEVEL),
            "periods": PERIODS,
            "logger": LOGGER,
            "forever": FOREVER,
        },
        "may_manage": may_manage,
        "may_operate": visit.may(Access.OPERATE, SERVICE),
        "backup": visit.same_as(
            ["backup", "--to", "DIRECTORY"], visit.question("backups.begin", {})
        ),
    }
    return WebPage("service.html", values)


def _sections(
    settings: list[ConfiguredSetting], only_given: bool
) -> list[tuple[str, list[ConfiguredSetting]]]:
    """The settings by section, those of none first; `only_given`: without defaults."""
    shown = [one for one in settings if one.source or not only_given]
    shown.sort(key=lambda one: ("." in one.key, one.key.rpartition(".")[0]))
    return [
        (name, [*some]) for name, some in groupby(shown, lambda one: one.key.rpartition(".")[0])
    ]


async def show_level(visit: Visit) -> PageAnswer:
    """The effect of a level before it is set."""
    change = _change(visit.asked)
    values = {
        "change": change,
        "until": PERIODS.get(change.period, ("", 0))[0],
        "is_default": change.level == DEFAULT_LEVEL,
        "may_operate": visit.may(Access.OPERATE, SERVICE),
        "same": visit.same_as(change.command, visit.question("log.set_level", change.arguments)),
    }
    return WebPage("log_level.html", values)


async def set_level(visit: Visit) -> PageAnswer:
    """Set a level."""
    change = _change(visit.given)
    await visit.ask("log.set_level", **change.arguments)
    where = "at all instances" if change.everywhere else "at the instance that answered"
    text = f"The level of {change.logger} is {change.level} {where}."
    return Redirect(path_of("service") + "#log", Notice(text, DONE))


def _change(field: Any) -> LevelChange:
    """The change in the fields of a query or form. Raises `Invalid`."""
    period = field("period", "10m")
    if period not in PERIODS and period != FOREVER:
        raise Invalid(
            f"A period is one of {', '.join(PERIODS)} and {FOREVER}, got {period!r:.40}.",
            field="period",
        )
    level = field("level", "debug")
    if level not in (*LEVELS, DEFAULT_LEVEL):
        raise Invalid(
            f"A level is one of {', '.join(LEVELS)} and {DEFAULT_LEVEL}, got {level!r:.40}.",
            field="level",
        )
    return LevelChange(field("logger", LOGGER), level, period, field("everywhere") == "1")


ROUTES = (
    PageRoute("GET", "/console/service", show_service),
    PageRoute("GET", "/console/service/log", show_level),
    PageRoute("POST", "/console/service/log", set_level),
)
