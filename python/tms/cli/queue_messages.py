"""`tms queue receive`, `ack`, `nack`, `release`, `extend`, `reject` and `dead`: messages of queues,
so that a shell script can be a worker.

Tokens that came too late end a command with 4, as a conflict does; it was done for the others.
"""

import sys
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import click

from tms.api.queue_operations import QueuesApi
from tms.block.received import Delivered
from tms.cli.operations import takes
from tms.cli.output import Format, Row
from tms.cli.parameters import (
    SECONDS,
    GroupParameter,
    LimitOption,
    TemplateOption,
    TopicParameter,
    session_command,
)
from tms.cli.rendering import FIELDS, Fields, facts_of, renderer, write_bytes
from tms.cli.session import Session, Shared
from tms.model.message import Message
from tms.model.queue import (
    DEAD_CAUSE,
    DEAD_DELIVERIES,
    DEAD_PREFIX,
    RECEIVE_MAX,
    QueuedMessage,
    TokenResult,
)
from tms.model.topic import TopicName

if TYPE_CHECKING:
    from tms.client.queue import DeadLetter

TOO_LATE = 4
_DELIVERED_FIELDS: Fields = {
    **FIELDS,
    "a": lambda message: message.token.encode(),
    "d": lambda message: b"%d" % message.deliveries,
}

_DEAD_FIELDS: Fields = {
    **FIELDS,
    "c": lambda letter: letter.headers.get(DEAD_CAUSE) or b"",
    "d": lambda letter: letter.headers.get(DEAD_DELIVERIES) or b"",
}
_QUEUED_FIELDS: Fields = {**_DELIVERED_FIELDS, "a": lambda message: message.state.encode()}


@session_command("receive")
def receive(
    session: Session,
    topic: TopicParameter,
    group: GroupParameter,
    limit: Annotated[int, "-n", click.IntRange(1, RECEIVE_MAX), "[1]"] = 1,
    wait: Annotated[float, "-w", SECONDS, "Wait for the first. [0s]"] = 0.0,
    template: Annotated[TemplateOption, r"For example '%a %v\n'; see docs/cli.md."] = None,
) -> None:
    """Lease messages of a queue and print them with their tokens. Prints nothing if none comes in
    time.

    \b
      tms queue receive jobs workers --wait 20s --format '%a %v\\n'
      tms queue receive jobs workers -n 100 --json
    """
    render = renderer(session.format, template, "%a\t%v\n", _facts, _DELIVERED_FIELDS)
    name = TopicName.parse(topic)
    with session.bus() as bus:
        messages = bus.admin.queues.receive(name, group, limit, wait).messages(str(name))
    write_bytes(b"".join(map(render, messages)))
    session.say(f"{len(messages):,} messages")


def _facts(message: Delivered) -> dict[str, Any]:
    return {**facts_of(message), "deliveries": message.deliveries, "token": message.token}


@session_command("peek")
@takes(QueuesApi.peek)
def peek(
    session: Session,
    topic: str,
    group: str,
    limit: int,
    template: Annotated[TemplateOption, r"For example '%a %d %v\n'; see docs/cli.md."] = None,
) -> None:
    """Print messages of a queue without leasing them: their states, numbers of deliveries and
    values."""
    render = renderer(session.format, template, "%a\t%d\t%v\n", _queued_facts, _QUEUED_FIELDS)
    with session.bus() as bus:
        messages = bus.admin.queues.peek(TopicName.parse(topic), group, limit)
    write_bytes(b"".join(map(render, messages)))
    session.say(f"{len(messages):,} messages")


def _queued_facts(message: QueuedMessage) -> dict[str, Any]:
    shown = {"deliveries": message.deliveries, "state": message.state, "left_s": message.left_s}
    return {**facts_of(message), **shown, "token": message.token}


def _on_tokens(
    method: Callable[..., TokenResult], done: str, help: str, **options: str
) -> click.Command:
    """A command that passes tokens to an operation of the queue; `-` reads tokens from standard
    input."""
    name = method.__name__

    @takes(method, help=options)
    @click.pass_obj
    def run(
        session: Session, /, topic: str, group: str, tokens: tuple[str, ...], **more: Any
    ) -> int:
        queue = TopicName.parse(topic), group
        return _done(
            session, done, tokens, lambda port, some: getattr(port, name)(*queue, some, **more)
        )

    text = f"{help}; `-` reads tokens from standard input."
    return click.command(name, cls=Shared, help=text)(run)


TOKEN_COMMANDS = (
    _on_tokens(QueuesApi.ack, "acked", "Acknowledge the messages with these TOKENS"),
    _on_tokens(
        QueuesApi.nack,
        "given back",
        "Deliver the messages with these TOKENS again",
        delay_s="Not before. [the back-off]",
        cause="Goes with the dead letters, if it was the last.",
    ),
    _on_tokens(
        QueuesApi.release,
        "released",
        "Deliver the messages with these TOKENS again; this delivery does not count",
    ),
    _on_tokens(
        QueuesApi.extend,
        "extended",
        "Renew the leases of the messages with these TOKENS",
        lease_s="From now on. [the queue's]",
    ),
    _on_tokens(
        QueuesApi.reject,
        "rejected",
        "Move the messages with these TOKENS to the dead letters",
        cause="Goes with the dead letters.",
    ),
)


def _done(
    session: Session,
    what: str,
    tokens: tuple[str, ...],
    work: Callable[[QueuesApi, list[str]], TokenResult],
) -> int:
    """Call the operation, and say how many messages it settled; returns the exit code."""
    texts = (sys.stdin.read() if text == "-" else text for text in tokens)
    received = [token for text in texts for token in text.split()]
    if not received:
        return 0
    with session.bus() as bus:
        result = work(bus.admin.queues, received)
    session.say(f"{result.done:,} {what}")
    if result.fenced:
        session.say(f"too late: {' '.join(result.fenced)}")
    row: Row = {"done": result.done, "fenced": " ".join(result.fenced)}
    if session.format is not Format.TABLE:
        session.show({"done": result.done, "fenced": list(result.fenced)}, [row])
    return TOO_LATE if result.fenced else 0


@session_command("dead")
def dead(
    session: Session,
    topic: TopicParameter,
    group: GroupParameter,
    limit: LimitOption = None,
    template: Annotated[TemplateOption, r"For example '%c %v\n'; see docs/cli.md."] = None,
) -> None:
    """Print the dead letters of a queue that were not moved back, with headers that name their
    causes."""
    name = TopicName.parse(topic)
    with session.bus() as bus:
        info = bus.admin.queues.describe(name, group)
        if info.dying:
            session.say(f"{info.dying:,} messages are on their way to {info.dead_letter}")
        letters = islice(bus.list_dead_letters(topic, group=group), limit)
        print_dead_letters(session, letters, template, info.dead_letter)


def print_dead_letters(
    session: Session, letters: "Iterable[DeadLetter]", template: str | None, topic: TopicName
) -> None:
    """Print dead letters of `topic`, and their number."""
    render = renderer(session.format, template, "%h\t%v\n", _dead_facts, _DEAD_FIELDS)
    printed = 0
    for letter in letters:
        write_bytes(render(letter.message))
        printed += 1
    session.say(f"{printed:,} dead letters" if printed else f"No dead letters in {topic}")


def _dead_facts(letter: Message) -> dict[str, Any]:
    told = {name: _told(letter, DEAD_PREFIX + name) for name in ("cause", "deliveries", "origin")}
    return {**facts_of(letter), **told, "letter": f"{letter.partition}:{letter.id}"}


def _told(letter: Message, header: str) -> str:
    return (letter.headers.get(header) or b"").decode(errors="replace")
