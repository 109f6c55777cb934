"""The level of a service's log, while it runs."""

from typing import Annotated, Protocol

from msgspec import Meta

from tms.api.operation import Named, Resource, get, put
from tms.errors import Invalid, Malformed, NotFound
from tms.model.access import Access
from tms.model.log_level import DEFAULT_LEVEL, FOR_S_MAX, LEVELS, LOGGER, LogLevel
from tms.model.spelling import one_of, over

LevelText = Annotated[
    str,
    Meta(description=f"`{DEFAULT_LEVEL}`: as when the service started."),
    one_of(*LEVELS, DEFAULT_LEVEL),
]
LoggerName = Annotated[str, Meta(description="`tms`, or a logger below it; see docs/logging.md.")]
ForS = Annotated[
    float,
    Meta(
        description="After so many seconds it is the default again; left out: until the service "
        "starts again."
    ),
    over(0, FOR_S_MAX),
]
Levels = Annotated[
    list[LogLevel],
    Named("LogLevels", "Loggers that have levels of their own.", "levels"),
]


_NO_END = {  # of the default
    "not": {
        "required": ["level", "for_s"],
        "properties": {"level": {"const": DEFAULT_LEVEL}, "for_s": {"type": "number"}},
    }
}


class LogApi(Protocol):
    """The log of the instance that answers. `tms.server.log_levels.LogLevels` documents the
    promises."""

    @get("log/levels", Resource.SERVICE, Access.OBSERVE)
    def levels(self) -> Levels:
        """The loggers that have levels of their own."""

    @put(
        "log/levels",
        Resource.SERVICE,
        Access.OPERATE,
        body_shape=_NO_END,
        errors=(Malformed, Invalid, NotFound),
    )
    def set_level(
        self,
        level: LevelText,
        logger: LoggerName = LOGGER,
        for_s: ForS | None = None,
        everywhere: Annotated[bool, Meta(description="Of all instances of the cluster.")] = False,
    ) -> Levels:
        """Set the level of a logger, for a while or until the service starts again."""
