"""A queue: messages are leased to workers, who acknowledge them one by one.

    queue = bus.queue("jobs", group="workers")
    for message in queue.receive(100, wait_s=20):
        with queue.settling(message):
            …                                # acknowledged at the end, given back if this raises

Invariants

* It keeps nothing: any number of them, in any number of processes, are one queue.
* Neighbours among the messages of a call go as one token.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from tms import forks
from tms.client.ports import QueuesPort
from tms.errors import Invalid
from tms.model.block import MESSAGES_MAX
from tms.model.queue import (
    RECEIVE_BYTES,
    QueueInfo,
    QueueSettings,
    Settlement,
    Token,
    TokenResult,
    join_tokens,
)
from tms.model.received import Delivered, Received
from tms.model.topic import TopicName

Messages = Delivered | Received | str | Iterable[Delivered | str]
_AHEAD, _WAIT_S = 16, 20.0


class Queue:
    """Made by `Bus.queue`. Thread-safe."""

    def __init__(
        self,
        port: Callable[[], QueuesPort],
        group: str,
        name: TopicName,
        settings: QueueSettings,
    ) -> None:
        self._port = port
        self.group = group
        self.name = name
        self.settings = settings

    @property
    def topic(self) -> str:
        """The topic, as messages name it."""
        return str(self.name)

    def __repr__(self) -> str:
        return f"<Queue {self.group} of {self.name}>"

    # -- messages ----------------------------------------------------------------------------------

    def receive(
        self, limit: int = 1, wait_s: float = 0, bytes_max: int = RECEIVE_BYTES
    ) -> list[Delivered]:
        """Up to `limit` messages, leased to the caller; waits up to `wait_s` for the first one.
        Those that were delivered before come first. Raises `QueueNotFound`, `Invalid`."""
        return self.receive_slices(limit, wait_s, bytes_max).messages(self.topic)

    def receive_slices(
        self, limit: int = 1, wait_s: float = 0, bytes_max: int = RECEIVE_BYTES
    ) -> Received:
        """The same, as slices of blocks with their columns: faster where messages are many."""
        return self._port().receive(self.group, self.name, limit, wait_s, bytes_max)

    def __iter__(self) -> Iterator[Delivered]:
        """Messages without end, a few leased ahead; each is to be acknowledged."""
        while True:
            generation = forks.generation()
            for message in self.receive(_AHEAD, _WAIT_S):
                if forks.generation() != generation:
                    break  # these were leased to the parent
                yield message

    @contextmanager
    def settling(self, message: Delivered) -> Iterator[Delivered]:
        """Acknowledge a message when the block ends; give it back, with the queue's back-off, when
        it raises."""
        try:
            yield message
        except BaseException:
            self.nack(message)
            raise
        self.ack(message)

    # -- what became of them -----------------------------------------------------------------------

    def ack(self, messages: Messages) -> TokenResult:
        """Messages are done with; by messages, tokens, or what `receive_slices` gave. Those that
        came too late are named in the result: others have them now."""
        return self._port().ack(self.group, self.name, tokens_of(messages))

    def nack(self, messages: Messages, delay_s: float | None = None) -> TokenResult:
        """Messages are to be delivered again, after `delay_s`, or the queue's back-off if left out;
        a message whose last delivery that was goes to the dead letters."""
        return self._port().nack(self.group, self.name, tokens_of(messages), delay_s)

    def extend(self, messages: Messages, lease_s: float | None = None) -> TokenResult:
        """Leases begin anew, for `lease_s`, or as long as is usual for the queue."""
        return self._port().extend(self.group, self.name, tokens_of(messages), lease_s)

    def reject(self, messages: Messages, cause: str = "") -> TokenResult:
        """Messages go to the dead letters, with this cause."""
        return self._port().reject(self.group, self.name, tokens_of(messages), cause)

    def settlement(self, messages: Messages) -> Settlement:
        """What a transaction carries to acknowledge messages with its commit."""
        return Settlement(self.group, self.name, tuple(tokens_of(messages)))

    # -- the queue ---------------------------------------------------------------------------------

    def describe(self) -> QueueInfo:
        """How it stands."""
        return self._port().describe(self.group, self.name)

    def update(self, **changes: object) -> QueueInfo:
        """Change settings. Raises `Invalid`."""
        info = self._port().update(self.group, self.name, changes)
        self.settings = info.settings
        return info

    def redrive(self, limit: int = 1_000) -> int:
        """Publish dead letters to the topic again, up to `limit`; how many. Raises `Conflict` when
        somebody else does so, too."""
        return self._port().redrive(self.group, self.name, limit)

    def delete(self) -> None:
        """Forget the queue; topic and dead letters stay."""
        self._port().delete(self.group, self.name)


def tokens_of(messages: Messages) -> list[str]:
    """The tokens of messages, one for each run of neighbours. Raises `Invalid`."""
    if isinstance(messages, Received):
        return messages.tokens()
    if isinstance(messages, Delivered | str):
        messages = (messages,)
    tokens: list[Token] = []
    partition, first, stop, deliveries, epoch = -1, 0, 0, 0, ""
    for message in messages:
        if not isinstance(message, Delivered):
            tokens.append(_token(message))
            continue
        _, of, offset, _, _, _, _, number, text = message
        own = text[text.rindex(".") :]
        joins = offset == stop and of == partition and number == deliveries and own == epoch
        if joins and stop - first < MESSAGES_MAX:
            stop += 1
            continue
        if stop > first:
            tokens.append(Token(partition, first, deliveries, int(epoch[1:], 16), stop - first))
        partition, first, stop, deliveries, epoch = of, offset, offset + 1, number, own
    if stop > first:
        tokens.append(Token(partition, first, deliveries, int(epoch[1:], 16), stop - first))
    return [str(token) for token in join_tokens(tokens)]


def _token(text: str) -> Token:
    if isinstance(text, str):
        return Token.parse(text)
    raise Invalid(
        f"A queue takes its messages or their tokens, got {type(text).__name__}.", field="tokens"
    )
