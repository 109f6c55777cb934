"""One queue over all partitions of a topic: the effects of tokens.

Invariants

* Decisions change nothing: they are edits, to be journaled and then applied.
* A token of another epoch, or of a delivery that is over, is late and has no effect.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from random import Random

import msgspec

from tms.model.ids import MessageId
from tms.model.queue import QueueSettings, Token, released
from tms.queues.entries import (
    NOWHERE,
    Declared,
    Extended,
    PartitionEdit,
    Rejected,
    Released,
    Returned,
    Rewound,
    Settled,
)
from tms.queues.partition import DYING, LEASED, WAITING, Counters, QueuePartitionState
from tms.queues.runs import Runs, runs_of

Edits = list[tuple[int, PartitionEdit]]  # with the partition
EPOCH_MAX = (1 << 32) - 1
_READY = attrgetter("ready")
_DYING = attrgetter("dying")
_SETTLED_FROM = (LEASED, WAITING, DYING)  # states in which a token settles its messages


class Decision(msgspec.Struct):
    """Edits to journal for tokens, the number of messages that they change, and the late tokens."""

    edits: Edits
    done: int
    late: list[Token]


class QueueState:
    """A queue. Not thread-safe."""

    def __init__(self, declared: Declared) -> None:
        self.change(declared)
        self.totals = totals = Counters()
        ordered = self.settings.ordered_by == "key"
        # made when it is first named
        self.partitions = defaultdict[int, QueuePartitionState](
            lambda: QueuePartitionState(0, NOWHERE, ordered, totals)
        )
        for partition, frontier, at in declared.starts:
            self.partitions[partition] = QueuePartitionState(frontier, at, ordered, totals)

    def change(self, declared: Declared) -> None:
        """Take over the settings and the epoch of a declaration."""
        self.declared = declared
        self.settings = declared.settings
        self.lease_ms = max(1, round(declared.settings.lease_s * 1_000))
        self.epoch = declared.epoch + declared.losses & EPOCH_MAX  # a part of every token

    def holders(self) -> set[int]:
        """Write pointers of the commits under way that settle messages of this queue."""
        held = [partition.held for partition in self.partitions.values() if partition.held]
        return {pointer for each in held for pointer in each.values()}

    def rewound(self, ends: Mapping[int, tuple[int, MessageId | None]]) -> Edits:
        """Edits that take the queue back to the end of its log: the offset and the last id, by
        partition."""
        edits: Edits = []
        for number, (stop, id) in ends.items():
            if self.partitions[number].frontier > stop:
                at = NOWHERE if id is None else id.time_ms << 16 | id.sequence
                edits.append((number, Rewound(stop, at)))
        return edits

    def after_loss(self) -> Declared:
        """The declaration after a loss: all older tokens are late."""
        return msgspec.structs.replace(self.declared, losses=self.declared.losses + 1)

    def expire(self, now_ms: int) -> bool:
        """End leases and delays that are over; True if a message became ready or dying."""
        news = False
        for partition in self.partitions.values():
            next_ms = partition.deadlines.next_ms
            if next_ms is not None and next_ms <= now_ms:
                news = partition.expire(now_ms, self.settings.deliveries_max) or news
        return news

    def next_ms(self) -> int | None:
        """The earliest time at which a lease or delay may end."""
        times = (partition.deadlines.next_ms for partition in self.partitions.values())
        return min((time for time in times if time is not None), default=None)

    @property
    def has_ready(self) -> bool:
        """True if a message may be ready for its next delivery."""
        return any(map(_READY, self.partitions.values()))

    @property
    def has_dying(self) -> bool:
        """True if a message may wait for its move to the dead letters."""
        return any(map(_DYING, self.partitions.values()))

    # -- tokens ------------------------------------------------------------------------------------

    def settle(self, tokens: Sequence[Token]) -> Decision:
        """Settle messages."""
        good, late = self._split(tokens, _SETTLED_FROM)
        edits: Edits = []
        for number, offsets in good.items():
            edits.append((number, Settled(runs_of(offsets))))
        return Decision(edits, sum(map(len, good.values())), late)

    def settle_gone(self, gone: Iterable[tuple[int, Sequence[int]]]) -> Edits:
        """Settle messages that are gone from the log, unless a transaction holds them."""
        edits: Edits = []
        for number, offsets in gone:
            state = self.partitions[number]
            left = [
                offset for offset in offsets if offset in state.out and offset not in state.held
            ]
            if left:
                edits.append((number, Settled(runs_of(left))))
        return edits

    def nack(
        self,
        tokens: Sequence[Token],
        delay_ms: int | None,
        cause: str,
        when_ms: int,
        random: Random,
    ) -> Decision:
        """Return messages for another delivery after a delay or their back-off. Messages that were
        delivered often enough go to the dead letters, with the cause."""
        good, late = self._split(tokens, (LEASED, WAITING))
        limit = self.settings.deliveries_max
        edits: Edits = []
        for number, offsets in good.items():
            state = self.partitions[number]
            used_up = [o for o in offsets if 0 < limit <= state.deliveries(o)]
            if used_up:
                why = cause or f"it was given back after {limit} deliveries"
                edits.append((number, Rejected(runs_of(used_up), why)))
            again = [o for o in offsets if not 0 < limit <= state.deliveries(o)]
            if not again:
                continue
            if delay_ms is not None:
                runs = runs_of(again)
                delays = [delay_ms] * (len(runs) // 2)
            else:
                runs = [number for offset in again for number in (offset, 1)]
                delays = [
                    backoff_ms(self.settings, state.deliveries(offset), random) for offset in again
                ]
            edits.append((number, Returned(runs, delays, when_ms)))
        return Decision(edits, _count(good), late)

    def release(self, tokens: Sequence[Token]) -> Decision:
        """Return messages for another delivery at once; this delivery does not count. A release
        that is repeated before the next delivery counts as done."""
        good, late = self._split(tokens, (LEASED, WAITING, DYING))
        edits: Edits = []
        for number, offsets in good.items():
            state = self.partitions[number]
            runs: Runs = []
            deliveries: list[int] = []
            for offset in offsets:
                rest = released(state.number(offset))
                if runs and runs[-2] + runs[-1] == offset and deliveries[-1] == rest:
                    runs[-1] += 1
                else:
                    runs += (offset, 1)
                    deliveries.append(rest)
            edits.append((number, Released(runs, deliveries)))
        left = [token for token in late if not self._was_released(token)]
        return Decision(edits, _count(good) + len(late) - len(left), left)

    def _was_released(self, token: Token) -> bool:
        state = self.partitions.get(token.partition)
        return state is not None and token.epoch == self.epoch and state.was_released(token)

    def extend(self, tokens: Sequence[Token], lease_ms: int, when_ms: int) -> Decision:
        """Extend leases."""
        return self._each(
            tokens, lambda offsets: Extended(runs_of(offsets), lease_ms, when_ms), (LEASED, WAITING)
        )

    def reject(self, tokens: Sequence[Token], cause: str) -> Decision:
        """Send messages to the dead letters."""
        return self._each(
            tokens, lambda offsets: Rejected(runs_of(offsets), cause), (LEASED, WAITING, DYING)
        )

    def _each(
        self,
        tokens: Sequence[Token],
        edit: Callable[[Sequence[int]], PartitionEdit],
        states: Sequence[int],
    ) -> Decision:
        good, late = self._split(tokens, states)
        edits = [(number, edit(offsets)) for number, offsets in good.items()]
        return Decision(edits, _count(good), late)

    def _split(
        self, tokens: Sequence[Token], states: Sequence[int]
    ) -> tuple[dict[int, list[int]], list[Token]]:
        """The valid offsets of tokens by partition, ascending and each once, and the late
        tokens."""
        by_partition: dict[int, list[int]] = {}
        late: list[Token] = []
        for token in tokens:
            state = self.partitions.get(token.partition)
            if state is None or token.epoch != self.epoch:
                late += token.each()
                continue
            good, others = state.split(token, states)
            if others:
                late += (token._replace(offset=offset, count=1) for offset in others)
            if good:
                by_partition.setdefault(token.partition, []).extend(good)
        if len(tokens) > 1:
            by_partition = {number: sorted({*some}) for number, some in by_partition.items()}
        return by_partition, late


def _count(good: Mapping[int, Sequence[int]]) -> int:
    return sum(map(len, good.values()))


def backoff_ms(settings: QueueSettings, deliveries: int, random: Random) -> int:
    """The delay after so many deliveries: doubled each time up to the limit, with jitter so that
    what failed together does not come back together."""
    doubled = settings.backoff_first_s * 2.0 ** min(max(deliveries - 1, 0), 60)
    delay_s = min(settings.backoff_max_s, doubled)
    share = 1.0 + settings.jitter * (2.0 * random.random() - 1.0)
    return max(0, round(delay_s * share * 1_000))
