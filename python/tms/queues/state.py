"""One queue over all partitions of a topic: what tokens mean for it.

Invariants

* Decisions change nothing: they are edits, to be journaled and then applied.
* A token of another epoch, or of a delivery that is over, is late; nothing is done for it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import NamedTuple

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
from tms.queues.partition import DYING, LEASED, WAITING, QueuePartitionState
from tms.queues.runs import Runs, runs_of

Edits = list[tuple[int, PartitionEdit]]  # with the partition


EPOCH_MAX = (1 << 32) - 1


class Decision(NamedTuple):
    """What to journal for tokens, for how many messages, and the tokens that came too late."""

    edits: Edits
    done: int
    late: list[Token]


class QueueState:
    """A queue. Not thread-safe."""

    def __init__(self, declared: Declared) -> None:
        self.declared = declared
        self.settings = declared.settings
        self.partitions: dict[int, QueuePartitionState] = {}
        for partition, frontier, at in declared.starts:
            self.partitions[partition] = self._made(frontier, at)

    @property
    def epoch(self) -> int:
        """A part of every token."""
        return self.declared.epoch + self.declared.losses & EPOCH_MAX

    def change(self, declared: Declared) -> None:
        """It has these settings from now on."""
        self.declared = declared
        self.settings = declared.settings

    def partition(self, number: int) -> QueuePartitionState:
        """How it stands in a partition."""
        partition = self.partitions.get(number)
        if partition is None:
            partition = self.partitions[number] = self._made(0, NOWHERE)
        return partition

    def _made(self, frontier: int, at: int) -> QueuePartitionState:
        return QueuePartitionState(frontier, at, self.settings.ordered_by == "key")

    def outstanding(self) -> int:
        """How many messages were looked at and are not settled."""
        return sum(len(partition.out) for partition in self.partitions.values())

    def holders(self) -> set[int]:
        """The commits under way that settle something here."""
        held = [partition.held for partition in self.partitions.values() if partition.held]
        return {pointer for each in held for pointer in each.values()}

    def rewound(self, ends: Mapping[int, tuple[int, MessageId | None]]) -> Edits:
        """What takes it back to where its log ends: the offset and the last id, by partition."""
        edits: Edits = []
        for number, (stop, id) in ends.items():
            if self.partition(number).frontier > stop:
                at = NOWHERE if id is None else id.time_ms << 16 | id.sequence
                edits.append((number, Rewound(stop, at)))
        return edits

    def after_loss(self) -> Declared:
        """The queue, whose tokens are late from now on."""
        return msgspec.structs.replace(self.declared, losses=self.declared.losses + 1)

    def expire(self, now_ms: int) -> bool:
        """Leases and delays that are over end; whether something became ready or dying."""
        news = False
        for partition in self.partitions.values():
            next_ms = partition.next_ms()
            if next_ms is not None and next_ms <= now_ms:
                news = partition.expire(now_ms, self.settings.deliveries_max) or news
        return news

    def next_ms(self) -> int | None:
        """When a lease or a delay may end."""
        times = (partition.next_ms() for partition in self.partitions.values())
        return min((time for time in times if time is not None), default=None)

    @property
    def has_ready(self) -> bool:
        """Whether something may be there to be delivered again."""
        return any(partition.has_ready for partition in self.partitions.values())

    @property
    def has_dying(self) -> bool:
        """Whether something may be there for the dead letters."""
        return any(partition.dying for partition in self.partitions.values())

    # -- tokens ------------------------------------------------------------------------------------

    def settle(self, tokens: Iterable[Token]) -> Decision:
        """These are done with."""
        return self._each(
            tokens, lambda offsets: Settled(runs_of(offsets)), (LEASED, WAITING, DYING)
        )

    def settle_gone(self, gone: Iterable[tuple[int, Sequence[int]]]) -> Edits:
        """These are not in the log any more, but for what a commit under way settles anyway."""
        edits: Edits = []
        for number, offsets in gone:
            state = self.partition(number)
            left = [
                offset for offset in offsets if offset in state.out and offset not in state.held
            ]
            if left:
                edits.append((number, Settled(runs_of(left))))
        return edits

    def nack(
        self,
        tokens: Iterable[Token],
        delay_ms: int | None,
        cause: str,
        when_ms: int,
        random: Random,
    ) -> Decision:
        """These are to be delivered again, after a delay or their back-off, unless they were
        delivered often enough: then they go to the dead letters, with the cause."""
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

    def release(self, tokens: Iterable[Token]) -> Decision:
        """These are to be delivered again at once, and this delivery is taken back. A release that
        is repeated before that is done again."""
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

    def extend(self, tokens: Iterable[Token], lease_ms: int, when_ms: int) -> Decision:
        """The leases of these begin anew."""
        return self._each(
            tokens, lambda offsets: Extended(runs_of(offsets), lease_ms, when_ms), (LEASED, WAITING)
        )

    def reject(self, tokens: Iterable[Token], cause: str) -> Decision:
        """These go to the dead letters."""
        return self._each(
            tokens, lambda offsets: Rejected(runs_of(offsets), cause), (LEASED, WAITING, DYING)
        )

    def _each(
        self,
        tokens: Iterable[Token],
        edit: Callable[[Sequence[int]], PartitionEdit],
        states: Sequence[int],
    ) -> Decision:
        good, late = self._split(tokens, states)
        edits = [(number, edit(offsets)) for number, offsets in good.items()]
        return Decision(edits, _count(good), late)

    def _split(
        self, tokens: Iterable[Token], states: Sequence[int]
    ) -> tuple[dict[int, list[int]], list[Token]]:
        """Offsets by partition, in order and each once, and the tokens that came too late."""
        by_partition: dict[int, list[int]] = {}
        late: list[Token] = []
        for token in tokens:
            state = self.partitions.get(token.partition)
            if state is None or token.epoch != self.epoch:
                late += token.each()
                continue
            good, others = state.split(token, states)
            if good:
                by_partition.setdefault(token.partition, []).extend(good)
            late += (token._replace(offset=offset, count=1) for offset in others)
        return {number: sorted(set(offsets)) for number, offsets in by_partition.items()}, late


def _count(good: Mapping[int, Sequence[int]]) -> int:
    return sum(map(len, good.values()))


def backoff_ms(settings: QueueSettings, deliveries: int, random: Random) -> int:
    """The delay after so many deliveries: doubled each time up to the limit, with jitter so that
    what failed together does not come back together."""
    doubled = settings.backoff_first_s * 2.0 ** min(max(deliveries - 1, 0), 60)
    delay_s = min(settings.backoff_max_s, doubled)
    share = 1.0 + settings.jitter * (2.0 * random.random() - 1.0)
    return max(0, round(delay_s * share * 1_000))
