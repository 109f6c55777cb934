"""The base of the commands of jobs: the place of the topics, the session of Spark, the progress.

* Progress is shown on standard error if that is a terminal, and not with `--quiet`.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

import click

from tms.cli.output import draw_line
from tms.cli.session import Session
from tms.runtime.background import meanwhile
from tms.spark.sessions import job_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

F = TypeVar("F", bound=Callable[..., Any])

_LOOK_S = 0.3
_BAR_CHARS = 30


class Where(NamedTuple):
    """The service or the HBase that topics are read from, and the token for the service."""

    url: str | None
    store: str | None
    token: str | None = None


@dataclass(frozen=True)
class SparkOptions:
    """The options of every command that starts Spark."""

    master: Annotated[
        str | None, {"metavar": "URL"}, "Spark's master. [local[*], or that of spark-submit]"
    ] = None
    confs: Annotated[
        tuple[str, ...], "--conf", {"metavar": "NAME=VALUE"}, "A setting of Spark; may be repeated."
    ] = ()


StoreOption = Annotated[  # for what reads only
    str | None,
    {"metavar": "URL"},
    "Read from HBase itself: hbase://HOST:PORT,…/NAMESPACE. [TMS_STORE, TMS__STORE]",
]


def reading_from(session: Session, store: str | None) -> Where:
    """The service or the HBase to read from: the typed one, else TMS_URL or TMS_CONTEXT, else
    TMS_STORE or TMS__STORE, else the selected context or the service on this machine."""
    require_no_directory(session)
    typed = session.url is not None or session.context is not None
    if store is None and not typed and not session.remote().meant.named:
        store = store_of_environment()
    if store is None:
        return service_of(session)
    if typed:
        raise click.UsageError(
            "Both a service and an HBase are given; choose --store, or --url or --context."
        )
    session.store = store
    return Where(None, store)


def store_of_environment() -> str | None:
    """The HBase that TMS_STORE or TMS__STORE names."""
    return os.environ.get("TMS_STORE") or os.environ.get("TMS__STORE")


def service_of(session: Session) -> Where:
    """The service of the target, and the token for it."""
    require_no_directory(session)
    remote = session.remote()
    if remote.trusted() or remote.own_certificate():
        raise _files_of_tls("those of a context")
    return Where(remote.meant.url, None, remote.token() or None)


def require_no_directory(session: Session) -> None:
    """Raises `click.UsageError`, also for files of TLS: tasks find them by the environment."""
    if session.ca or session.cert or session.key:
        raise _files_of_tls("--ca, --cert and --key")
    if session.data is not None:
        raise click.UsageError(
            "Spark reads from a service (--url) or from HBase (--store), not from a directory."
        )


def _files_of_tls(which: str) -> click.UsageError:
    return click.UsageError(f"For Spark {which} are given as TMS_CA, TMS_CERT and TMS_KEY.")


@contextmanager
def started(options: SparkOptions) -> Iterator["SparkSession"]:
    """A session of Spark."""
    settings = {}
    for conf in options.confs:
        name, equals, value = conf.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"A setting is NAME=VALUE, got {conf!r}.", param_hint="--conf")
        settings[name] = value
    with job_session(options.master, settings) as spark:
        yield spark


@contextmanager
def counted(session: Session, what: str) -> Iterator[Callable[[int, int], None] | None]:
    """Show the progress of a job that reports how much of how much it has done; yields the function
    to report to, None if nothing is shown."""
    if not _is_watched(session):
        yield None
        return
    progress = _Progress(session, what)
    try:
        yield progress.draw
    finally:
        draw_line("")


@contextmanager
def watched(session: Session, spark: "SparkSession", what: str) -> Iterator[None]:
    """Show the progress of a job by the tasks that Spark knows of."""
    if not _is_watched(session):
        yield
        return
    progress = _Progress(session, what)
    try:
        with meanwhile(partial(_watch, spark, progress)):
            yield
    finally:
        draw_line("")


class _Progress:
    """A line on standard error: the work, a bar, the share that is done, the time since."""

    def __init__(self, session: Session, what: str) -> None:
        self._what = what
        self._clock = session.clock
        self._began_s = session.clock.monotonic_s()

    def draw(self, done: int, total: int) -> None:
        """Draw `done` of `total` in place of the line before."""
        filled = _BAR_CHARS * done // max(total, 1)
        bar = "#" * filled + "-" * (_BAR_CHARS - filled)
        took_s = int(self._clock.monotonic_s() - self._began_s)
        draw_line(f"{self._what} {bar} {done:,}/{total:,} {took_s // 60}:{took_s % 60:02d}")


def _watch(spark: "SparkSession", progress: _Progress, ended: threading.Event) -> None:
    tracker = spark.sparkContext.statusTracker()
    known: dict[int, tuple[int, int]] = {}
    while not ended.wait(_LOOK_S):
        active = set(tracker.getActiveStageIds())
        for stage in active:
            info = tracker.getStageInfo(stage)
            if info is not None:
                known[stage] = (info.numCompletedTasks, info.numTasks)
        done = sum(done if one in active else total for one, (done, total) in known.items())
        progress.draw(done, sum(total for _, total in known.values()))


def _is_watched(session: Session) -> bool:
    return not session.quiet and sys.stderr.isatty()
