"""Options that the commands of `tms hbase` share: the store's address, the jar, the output of
steps.

* `--store` wins over TMS_STORE, and that over TMS__STORE, which configures the service.
* A dry run prints the steps and changes nothing.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import click
import msgspec

from tms.cli.parameters import RETENTION
from tms.cli.session import Session
from tms.errors import ConfigError
from tms.model.topic import parse_retention
from tms.store.hbase.admin import Admin
from tms.store.hbase.deployment import jar, plan
from tms.store.hbase.deployment import jar_places as places
from tms.store.hbase.deployment.deploy import Deployment
from tms.store.hbase.pool import HBasePlace, Limits

CALL_S, CONNECT_S = 15.0, 5.0
WAIT = "60s"


HBaseOption = Annotated[
    str | None,
    {"envvar": ["TMS_STORE", "TMS__STORE"], "metavar": "URL"},
    "hbase://HOST:PORT,…/NAMESPACE: Thrift 2 servers. [TMS_STORE, TMS__STORE]",
]
WebHdfsOption = Annotated[
    str | None, "--webhdfs", {"metavar": "URL"}, "Reach HDFS at http://NAMENODE:9870."
]
WaitOption = Annotated[
    str, RETENTION, f"How long the regions of a table may take to answer. [{WAIT}]"
]


@dataclass(frozen=True, slots=True)
class JarOptions:
    """The options that concern the coprocessor's jar."""

    file: Annotated[
        Path | None, "--jar", click.Path(path_type=Path), "The coprocessor. [the one of this TMS]"
    ] = None
    directory: Annotated[
        str | None,
        "--jar-directory",
        {"metavar": "DIR"},
        "Where region servers read it: PATH, file:///PATH, hdfs://HOST:PORT/PATH. [where it is]",
    ] = None
    webhdfs: WebHdfsOption = None
    shared: Annotated[
        bool, "The directory is mounted at the same path on every server of HBase."
    ] = False

    @property
    def given(self) -> bool:
        """True if the options name a jar or its directory."""
        return bool(self.file or self.directory)


@contextmanager
def deployment(session: Session, url: str | None, wait: str = WAIT) -> Iterator[Deployment]:
    """The deployment in the namespace of HBase that the options name."""
    if session.url is not None or session.data is not None or session.context is not None:
        raise click.UsageError("tms hbase takes --store instead of --url, --context and --data.")
    if not url:
        raise click.UsageError("Say which HBase: --store hbase://HOST:PORT/NAMESPACE.")
    session.store = url
    wait_ms = parse_retention(wait)
    if wait_ms is None:
        raise click.UsageError("--wait needs an end.")
    place = HBasePlace.parse(url)
    if place.namespace == "hbase":
        raise ConfigError(
            "The namespace hbase belongs to HBase itself.", next=f"name another one in {url}"
        )
    admin = Admin(place, session.clock, Limits(connect_s=CONNECT_S, call_s=CALL_S))
    try:
        yield Deployment(admin, session.clock, wait_ms / 1000, session.say)
    finally:
        admin.close()


def wanted(
    deployment: Deployment, state: plan.TablesState, jars: JarOptions
) -> tuple[plan.Build, places.Put]:
    """The jar to deploy, as tables name it, and the function that puts it there. Raises
    `ConfigError` if region servers would not see it."""
    found = jar.find(jars.file)
    note = state.note
    known = (note.coprocessor or note.former) if note is not None else None
    if jars.directory is None and known is None:
        raise click.UsageError(
            "Say where region servers read the coprocessor, with --jar-directory: a directory in "
            "HDFS (hdfs://NAMENODE:PORT/tms), or one that all of them see. Or --no-coprocessor."
        )
    directory = jars.directory or (known.path.rpartition("/")[0] if known is not None else "")
    place = places.parse(directory, jars.webhdfs)
    build = plan.Build(found.version, place.url(found.name), found.sha256)
    deployment.require_visible(place, jars.shared)
    return build, partial(place.put, found.name, found.content)


def show(
    session: Session,
    deployment: Deployment,
    steps: Sequence[plan.Step],
    dry_run: bool,
    done: str,
    build: plan.Build | None = None,
) -> None:
    """Print the steps and their outcome, or in a dry run the steps only."""
    namespace = deployment.namespace
    changes = [plan.words(step, namespace) for step in plan.changes(steps)]
    if dry_run:
        for text in changes:
            session.say(f"would {text}")
        session.say("dry run, nothing was changed" if changes else "nothing would change")
    else:
        session.say(done if changes else f"nothing had to be changed; {done}")
    session.show_result(
        {
            "namespace": namespace,
            "changes": changes,
            "changed": bool(changes) and not dry_run,
            "coprocessor": None if build is None else msgspec.to_builtins(build),
        }
    )
