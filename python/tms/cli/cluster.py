"""`tms cluster …`: the instances that share a store, what each owns, and who should own it instead.

Letting an instance own nothing asks for its name first, shows with `--dry-run` what it would do,
and takes `--yes`.
"""

import shlex
import subprocess
import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial
from urllib.parse import urlsplit

import click
import msgspec

from tms.api import routes
from tms.api.instances import ClusterApi
from tms.cli.output import Row
from tms.cli.session import (
    SECONDS,
    CommandGroup,
    Session,
    Shared,
    dry_run_option,
    topic_argument,
    yes_option,
)
from tms.client.http.transport import HttpTransport
from tms.client.rolling import restart_all
from tms.doctor.probe import ask
from tms.errors import Conflict, Invalid
from tms.model.cluster import ClusterView, InstanceInfo
from tms.model.ids import utc
from tms.model.topic import TopicName
from tms.tls import ClientTls

_LOOK_S = 5.0  # of a question to an instance while others restart
_STDERR = 2  # the descriptor: standard output is the result
_PAUSE_S = 0.5  # between two looks whether it is back
_partition = click.argument("partition", type=click.IntRange(min=0))
_instance = click.argument("instance")


@click.group("cluster", cls=CommandGroup)
def command() -> None:
    """Show the instances of a cluster, move what they own, let one own nothing."""


@command.command("status", cls=Shared)
@click.pass_obj
def status(session: Session) -> None:
    """The instances, which of them keeps transactions, groups and queues, and which one answers."""
    view = _cluster(session).view()
    if not view.instances:
        session.say(f"{session.where()} is alone, or sees no instance: it is {view.state}.")
    rows: list[Row] = [
        {
            "instance": one.id,
            "address": one.address,
            "version": one.version,
            "capacity": one.capacity,
            "draining": one.draining,
            "coordinates": one.id == view.coordinator,
            "answered": one.id == view.answered_by,
        }
        for one in view.instances
    ]
    session.show(msgspec.to_builtins(view), rows)


@command.command("events", cls=Shared)
@click.pass_obj
def events(session: Session) -> None:
    """What the instances noticed and did since they were started, the newest thousand of each."""
    found = _cluster(session).events()
    rows: list[Row] = [
        {
            "time": utc(event.time_ms).isoformat(timespec="milliseconds"),
            "instance": event.instance,
            "event": event.what,
            "details": event.details,
        }
        for event in found
    ]
    session.show(msgspec.to_builtins(found), rows)


@command.command("owners", cls=Shared)
@topic_argument
@click.pass_obj
def owners(session: Session, topic: str) -> None:
    """The instances that should own the partitions of TOPIC."""
    found = _cluster(session).owners(TopicName.parse(topic))
    rows: list[Row] = [
        {"partition": number, "instance": owner} for number, owner in enumerate(found.owners)
    ]
    session.show(msgspec.to_builtins(found), rows)


@command.command("move", cls=Shared)
@topic_argument
@_partition
@_instance
@click.pass_obj
def move(session: Session, topic: str, partition: int, instance: str) -> None:
    """Let INSTANCE own a partition of TOPIC, as long as it is there."""
    _cluster(session).move(TopicName.parse(topic), partition, instance)
    session.say(f"Partition {partition} of {topic} goes to {instance}.")
    session.show_result({"topic": topic, "partition": partition, "instance": instance})


@command.command("unpin", cls=Shared)
@topic_argument
@_partition
@click.pass_obj
def unpin(session: Session, topic: str, partition: int) -> None:
    """Let placement choose the owner of a partition of TOPIC again."""
    _cluster(session).unpin(TopicName.parse(topic), partition)
    session.say(f"Partition {partition} of {topic} goes where placement puts it.")
    session.show_result({"topic": topic, "partition": partition})


@command.command("drain", cls=Shared)
@_instance
@dry_run_option
@yes_option
@click.pass_obj
def drain(session: Session, instance: str, dry_run: bool, yes: bool) -> None:
    """Let INSTANCE own nothing, as long as there are others, until it is started anew."""
    what = f"{instance} will hand over all that it owns."
    if session.proceed(what, instance, dry_run, yes):
        _cluster(session).drain(instance)
    session.show_result({"instance": instance, "drained": not dry_run})


@command.command("restart", cls=Shared)
@click.argument("words", metavar="COMMAND…", nargs=-1, required=True)
@click.option("--wait", type=SECONDS, default=120.0, help="For each to be ready again. [120s]")
@dry_run_option
@click.pass_obj
def restart(session: Session, words: tuple[str, ...], wait: float, dry_run: bool) -> None:
    """Restart the instances one after another, each by COMMAND, which ends when it has stopped the
    instance and started it again. In it {instance}, {host} and {address} are filled in:

    tms cluster restart -- ssh {host} systemctl restart tms

    The next one follows when it is ready and all others see it. The coordinator comes last."""
    tls = session.tls()
    view = _cluster(session).view()
    stopped = ""  # the instance that restarts: the others say when it is back

    def look() -> ClusterView:
        others = [one.address for one in view.instances if one.id != stopped]
        return _view_of(others, tls) if others else view

    def run(one: InstanceInfo) -> None:
        nonlocal stopped
        host = urlsplit(one.address).hostname or ""
        filled = [
            word.replace("{instance}", one.id)
            .replace("{host}", host)
            .replace("{address}", one.address)
            for word in words
        ]
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


def _view_of(addresses: list[str], tls: ClientTls) -> ClusterView:
    """The cluster, as one of these instances sees it."""
    with closing(HttpTransport(",".join(addresses), timeout_s=_LOOK_S, tls=tls)) as transport:
        return transport.cluster.view()


def _is_ready(tls: ClientTls, one: InstanceInfo) -> bool:
    body = ask(one.address, routes.READYZ, _LOOK_S, tls).body
    return isinstance(body, dict) and body.get("ready") is True


def _cluster(session: Session) -> ClusterApi:
    """The cluster of the service that is meant. Raises `ConfigError` for a data directory."""
    return session.transport().cluster
