"""`tms consume`: prints the messages of a topic as they come.

Messages of a batch are written at once, so nothing waits in a buffer while the topic is quiet.
"""

from collections.abc import Iterator, Mapping
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING

import click

from tms.cli.rendering import Render, renderer, write_bytes
from tms.cli.session import SECONDS, START, Session, session_command, topic_argument
from tms.model.position import Position
from tms.model.snapshot import Isolation

if TYPE_CHECKING:
    import tms


@session_command("consume")
@topic_argument
@click.option(
    "--start",
    type=START,
    default="earliest",
    help="[earliest], latest, -10 (the last ten of each partition), a time, -1h, an id, offset:N.",
)
@click.option("-n", "--limit", type=click.IntRange(min=1), help="Stop after so many messages.")
@click.option(
    "--follow/--exit-at-end",
    " /-e",
    default=True,
    help="Go on with what comes [the default], or stop at the end of the topic.",
)
@click.option("-f", "--format", "template", help=r"For example '%k %v\n'; see docs/cli.md.")
@click.option("-p", "--partition", "partitions", type=click.IntRange(min=0), multiple=True)
@click.option(
    "--isolation",
    type=click.Choice(["committed", "uncommitted"]),
    default="committed",
    help="Whether to stop at open transactions. [committed]",
)
@click.option("--outage", type=SECONDS, help="Longest outage to wait for. [no limit]")
@click.option("--where", help='Only what matches: "key ^= user- and header.kind = order".')
def command(
    session: Session,
    topic: str,
    start: Position | int,
    limit: int | None,
    follow: bool,
    template: str | None,
    partitions: tuple[int, ...],
    isolation: str,
    outage: float | None,
    where: str | None,
) -> None:
    """Print the messages of TOPIC.

    \b
      tms consume flights --start latest --follow --json
      tms consume flights --exit-at-end --json
      tms consume flights --start -10 -e --format '%k %v\\n'
      tms consume flights --start 2026-11-01T00:00Z -n 1
      tms consume flights --where 'key ^= LH and header.kind = delay'
    """
    render = renderer(session.format, template)
    with session.bus(outage_s=outage) as bus:
        begin = _last(bus, topic, -start) if isinstance(start, int) else start
        consumer = bus.consumer(
            topic,
            start=begin,
            partitions=list(partitions) or None,
            stop_at_end=not follow,
            isolation=Isolation(isolation),
            where=where,
        )
        with closing(consumer):
            printed = 0
            for text in _printed(consumer, render, limit):
                write_bytes(b"".join(text))
                printed += len(text)
    session.say(f"{printed:,} messages")


def _printed(consumer: "tms.Consumer", render: Render, limit: int | None) -> Iterator[list[bytes]]:
    """The rendered messages of each batch, `limit` in total."""
    left = limit
    for batch in consumer.batches():
        texts = [render(message) for message in islice(batch.messages(), left)]
        yield texts
        if left is not None:
            left -= len(texts)
            if left == 0:
                return


def _last(bus: "tms.Bus", topic: str, count: int) -> Mapping[int, Position]:
    """In each partition the place `count` messages before its end."""
    return {
        part.partition: Position.offset(max(part.start_offset, part.end_offset - count))
        for part in bus.describe_topic(topic).partition_infos
    }
