"""What the commands of jobs share: where topics are, the session of Spark, how far it has come.

* Progress is shown on standard error, if that is a terminal and nobody asked for quiet.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from tms.cli.session import Session
from tms.spark.sessions import job_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.progress import Progress

F = TypeVar("F", bound=Callable[..., Any])

_LOOK_S = 0.3


class Where(NamedTuple):
    """The service or the HBase that topics are read from, and the token for the former."""

    url: str | None
    store: str | None
    token: str | None = None


def spark_options(command: F) -> F:
    """The options of every command that starts Spark."""
    return _master(_conf(command))


_master = click.option(
    "--master", metavar="URL", help="Spark's master. [local[*], or what spark-submit was told]"
)
_conf = click.option(
    "--conf",
    "confs",
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting of Spark; may be repeated.",
)
store_option = click.option(  # for what reads only
    "--store",
    metavar="URL",
    help="Read from HBase itself: hbase://HOST:PORT,…/NAMESPACE. [TMS_STORE, TMS__STORE]",
)


def reading_from(session: Session, store: str | None) -> Where:
    """The service or the HBase to read from: what was typed, else TMS_URL or TMS_CONTEXT, else
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
    """The service that is meant, and the token for it."""
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
def started(master: str | None, confs: tuple[str, ...]) -> Iterator["SparkSession"]:
    """A session of Spark."""
    options = {}
    for conf in confs:
        name, equals, value = conf.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"A setting is NAME=VALUE, got {conf!r}.", param_hint="--conf")
        options[name] = value
    with job_session(master, options) as spark:
        yield spark


@contextmanager
def counted(session: Session, what: str) -> Iterator[Callable[[int, int], None] | None]:
    """A bar for a job that tells how much it has done, of how much."""
    if not _is_watched(session):
        yield None
        return
    with _bar() as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def watched(session: Session, spark: "SparkSession", what: str) -> Iterator[None]:
    """A bar for a job that does not: of the tasks that Spark knows of."""
    if not _is_watched(session):
        yield
        return
    ended = threading.Event()
    with _bar() as bar:
        thread = threading.Thread(target=_watch, args=(spark, bar, what, ended), daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def _watch(spark: "SparkSession", bar: "Progress", what: str, ended: threading.Event) -> None:
    tracker = spark.sparkContext.statusTracker()
    shown = bar.add_task(what, total=None)
    known: dict[int, tuple[int, int]] = {}
    while not ended.wait(_LOOK_S):
        for stage in tracker.getActiveStageIds():
            info = tracker.getStageInfo(stage)
            if info is not None:
                known[stage] = (info.numCompletedTasks, info.numTasks)
        active = set(tracker.getActiveStageIds())
        tasks = [
            (total if one not in active else done, total) for one, (done, total) in known.items()
        ]
        if tasks:
            done, total = map(sum, zip(*tasks, strict=True))
            bar.update(shown, completed=done, total=total)


def _is_watched(session: Session) -> bool:
    return not session.quiet and sys.stderr.isatty()


def _bar() -> "Progress":
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
