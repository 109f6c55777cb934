"""`tms cluster …`: the instances that share a store, and the owners of its partitions.

`drain` asks for the instance's name first, shows with `--dry-run` what it would do, and takes
`--yes`.
"""

import shlex
import subprocess
import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Annotated
from urllib.parse import urlsplit

import click
import msgspec

from tms.api import routes
from tms.api.instances import ClusterApi
from tms.cli.checks.probe import ask
from tms.cli.operations import Given, runs, takes
from tms.cli.output import Row, columns
from tms.cli.parameters import SECONDS, DryRunOption, YesOption, session_command
from tms.cli.session import CommandGroup, Session
from tms.cli.topics import time_text
from tms.client.http.transport import transport_to
from tms.client.rolling import restart_all
from tms.errors import Conflict, Invalid
from tms.model.cluster import ClusterEvent, ClusterView, InstanceInfo, TopicOwners
from tms.runtime.tls import ClientTls

_LOOK_S = 5.0  # of a request to an instance while others restart
_STDERR = 2  # the descriptor: standard output is the result
_PAUSE_S = 0.5  # between two looks whether it is back


@click.group("cluster", cls=CommandGroup)
def command() -> None:
    """Show the instances of a cluster, move what they own, let one own nothing."""


@runs(command, "status", ClusterApi.view)
def status(session: Session, view: ClusterView, given: Given) -> None:
    """Show the instances, the coordinator of transactions, groups and queues, and the instance that
    answers."""
    if not view.instances:
        session.say(f"{session.where()} is alone, or sees no instance: it is {view.state}.")
    rows: list[Row] = [
        {"instance": one.id}
        | columns(one, "address", "version", "capacity", "draining")
        | {"coordinates": one.id == view.coordinator, "answered": one.id == view.answered_by}
        for one in view.instances
    ]
    session.show(msgspec.to_builtins(view), rows)


@runs(command, "events", ClusterApi.events)
def events(session: Session, events: list[ClusterEvent], given: Given) -> None:
    """Show the newest thousand events of each instance since its start."""
    rows: list[Row] = [
        {
            "time": time_text(event.time_ms),
            "instance": event.instance,
            "event": event.what,
            "details": event.details,
        }
        for event in events
    ]
    session.show(msgspec.to_builtins(events), rows)


@runs(command, "owners", ClusterApi.owners, names={"name": "topic"})
def owners(session: Session, owners: TopicOwners, given: Given) -> None:
    """Show the instances that should own the partitions of TOPIC."""
    rows: list[Row] = [
        {"partition": number, "instance": owner, "pinned": number in owners.pinned}
        for number, owner in enumerate(owners.owners)
    ]
    session.show(msgspec.to_builtins(owners), rows)


@runs(command, "move", ClusterApi.move, names={"name": "topic", "to": "instance"})
def move(session: Session, _: None, given: Given) -> None:
    """Let INSTANCE own a partition of TOPIC, for as long as the instance is live."""
    session.say("Partition {partition} of {topic} goes to {instance}.".format(**given))
    session.show_result(given)


@runs(command, "unpin", ClusterApi.unpin, names={"name": "topic"})
def unpin(session: Session, _: None, given: Given) -> None:
    """Let placement choose the owner of a partition of TOPIC again."""
    session.say("Partition {partition} of {topic} goes where placement puts it.".format(**given))
    session.show_result(given)


@session_command("drain", command)
@takes(ClusterApi.drain, names={"id": "instance"})
def drain(
    session: Session, instance: str, dry_run: DryRunOption = False, yes: YesOption = False
) -> None:
    """Let INSTANCE own nothing while there are others, until its next start."""
    what = f"{instance} will hand over all that it owns."
    if session.proceed(what, instance, dry_run, yes):
        session.transport().cluster.drain(instance)
    session.show_result({"instance": instance, "drained": not dry_run})


@session_command("restart", command)
def restart(
    session: Session,
    words: Annotated[tuple[str, ...], {"metavar": "COMMAND…"}],
    wait: Annotated[float, SECONDS, "For each to be ready again. [120s]"] = 120.0,
    dry_run: DryRunOption = False,
) -> None:
    """Restart the instances one after another, each by COMMAND, which ends when it has stopped the
    instance and started it again. In it {instance}, {host} and {address} are filled in:

    tms cluster restart -- ssh {host} systemctl restart tms

    The next one follows when it is ready and all others see it. The coordinator comes last."""
    tls = session.tls()
    view = session.transport().cluster.view()
    stopped = ""  # the instance that restarts: the others say when it is back

    def look() -> ClusterView:
        others = [one.address for one in view.instances if one.id != stopped]
        return _view_of(others, tls) if others else view

    def run(one: InstanceInfo) -> None:
        nonlocal stopped
        filled = [_filled(word, one) for word in words]
        session.say(f"{one.id}: {shlex.join(filled)}")
        if dry_run:
            return
        stopped = one.id
        try:
            code = subprocess.run(filled, check=False, stdout=_STDERR).returncode
        except OSError as exc:
            raise Invalid(f"{filled[0]!r} cannot be run: {exc}.", field="COMMAND") from exc
        if code:
            raise Conflict(
                f"The command for {one.id} ended with {code}. See `tms cluster status`; the "
                "instances after it were not restarted."
            )

    def wait_for(holds: Callable[[], bool]) -> bool:
        deadline_s = session.clock.monotonic_s() + wait
        while not (held := dry_run or holds()) and session.clock.monotonic_s() < deadline_s:
            threading.Event().wait(_PAUSE_S)
        return held

    restarted = []
    for one in restart_all(look, partial(_is_ready, tls), run, wait_for):
        restarted.append(one.id)
        session.say(f"{one.id} {'would be restarted' if dry_run else 'is ready'}.")
    session.show_result({"restarted": [] if dry_run else restarted})


def _filled(word: str, one: InstanceInfo) -> str:
    host = urlsplit(one.address).hostname or ""
    word = word.replace("{instance}", one.id).replace("{host}", host)
    return word.replace("{address}", one.address)


def _view_of(addresses: list[str], tls: ClientTls) -> ClusterView:
    """The view of one of these instances."""
    with closing(transport_to(",".join(addresses), timeout_s=_LOOK_S, tls=tls)) as transport:
        return transport.cluster.view()


def _is_ready(tls: ClientTls, one: InstanceInfo) -> bool:
    body = ask(one.address, routes.READYZ, _LOOK_S, tls).body
    return isinstance(body, dict) and body.get("ready") is True
