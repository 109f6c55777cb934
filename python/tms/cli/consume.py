"""`tms consume`: prints the messages of a topic as they come.

Messages of a batch are written at once, so nothing waits in a buffer while the topic is quiet.
"""

from collections.abc import Iterator, Mapping
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Literal

import click

from tms.cli.parameters import (
    SECONDS,
    START,
    LimitOption,
    TemplateOption,
    TopicParameter,
    session_command,
)
from tms.cli.rendering import Render, renderer, write_bytes
from tms.cli.session import Session
from tms.model.position import EARLIEST, Position
from tms.model.snapshot import Isolation

if TYPE_CHECKING:
    import tms


@session_command("consume")
def command(
    session: Session,
    topic: TopicParameter,
    start: Annotated[
        Position | int,
        START,
        "[earliest], latest, -10 (the last ten of each partition), a time, -1h, an id, offset:N.",
    ] = EARLIEST,
    limit: LimitOption = None,
    follow: Annotated[
        bool,
        "--follow/--exit-at-end",
        " /-e",
        "Go on with what comes [the default], or stop at the end of the topic.",
    ] = True,
    template: Annotated[TemplateOption, r"For example '%k %v\n'; see docs/cli.md."] = None,
    partitions: Annotated[tuple[int, ...], "-p", "--partition", click.IntRange(min=0)] = (),
    isolation: Annotated[
        Literal["committed", "uncommitted"], "Whether to stop at open transactions. [committed]"
    ] = "committed",
    outage: Annotated[float | None, SECONDS, "Longest outage to wait for. [no limit]"] = None,
    where: Annotated[
        str | None, 'Only what matches: "key ^= user- and header.kind = order".'
    ] = None,
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
        some = list(partitions) or None
        consumer = bus.consumer(
            topic, begin, some, not follow, where=where, isolation=Isolation(isolation)
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
