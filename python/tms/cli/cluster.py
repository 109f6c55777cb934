"""`tms cluster …`: the instances that share a store, what each owns, and who should own it instead.

Letting an instance own nothing asks for its name first, shows with `--dry-run` what it would do,
and takes `--yes`.
"""

import click
import msgspec

from tms.api.instances import ClusterApi
from tms.cli.output import Row
from tms.cli.session import (
    CommandGroup,
    Session,
    Shared,
    dry_run_option,
    topic_argument,
    yes_option,
)
from tms.model.ids import utc
from tms.model.topic import TopicName

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
            "answers": one.id == view.answered_by,
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


def _cluster(session: Session) -> ClusterApi:
    """The cluster of the service that is meant. Raises `ConfigError` for a data directory."""
    return session.transport().cluster
