"""Bugs to plant, for tests only: each undoes one promise of the product, and the simulation must
find it. The product has no switch for any of them."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from sim.bugs.classic import CLASSIC
from sim.bugs.counting import COUNTING
from sim.bugs.following import FOLLOWING
from sim.bugs.found import ELSEWHERE
from sim.bugs.gone import GONE
from sim.bugs.pages import PAGES
from sim.bugs.streams import STREAMS
from sim.replacing import Replacement, replaced
from tms.log import visibility
from tms.log.partition import PartitionState
from tms.log.partition_log import PartitionLog
from tms.log.producers import ForgottenProducers, ProducerWindow
from tms.log.segments import SegmentChain
from tms.model.snapshot import POINTERS_PER_MS, Fate
from tms.model.topic import Durability
from tms.model.transaction import CommittedPosition
from tms.topics.fetching import Fetcher
from tms.transactions.journal import RESERVE_MS, TransactionJournal, TransactionsMachine
from tms.transactions.manager import TransactionManager
from tms.transactions.state import TransactionState


def _acknowledge_before_write() -> list[Replacement]:
    """Blocks that have to be synced are only written."""
    right = SegmentChain.write

    def write(self: SegmentChain, rows: Any, durability: Durability) -> None:
        right(self, rows, Durability.WRITTEN)

    return [(SegmentChain, "write", write)]


def _skip_deduplication() -> list[Replacement]:
    """A repeated block is stored once more."""
    return [(ProducerWindow, "find", lambda self, header: None)]


def _forget_producers_early() -> list[Replacement]:
    """A producer that is pushed out of its window is forgotten immediately."""
    return [(ForgottenProducers, "add", lambda self, producer_id, blocks: None)]


def _read_uncommitted() -> list[Replacement]:
    """A reader of committed messages gets all messages."""
    return [(Fetcher, "_fate_of", lambda self, isolation: None)]


def _pass_open_transactions() -> list[Replacement]:
    """A committed reader passes messages that may still commit."""
    right = visibility.visible_blocks

    def visible_blocks(blocks: Any, fate_of: Any) -> Any:
        def passing(pointer: int, issued: bool) -> Fate:
            fate = fate_of(pointer, issued)
            return Fate.SKIPPED if fate is Fate.OPEN else fate

        return right(blocks, passing)

    from tms.topics import fetching

    return [(fetching, "visible_blocks", visible_blocks)]


def _prune_early() -> list[Replacement]:
    """Invalid transactions are forgotten while their messages still exist."""
    right = TransactionState.apply

    def apply(self: TransactionState, edit: Any) -> None:
        right(self, edit)
        for pointer in list(self.invalid):
            self.invalid.discard(pointer)
            self.ended.pop(pointer, None)

    return [(TransactionState, "apply", apply)]


def _no_fence() -> list[Replacement]:
    """After a power loss write pointers are issued again."""

    def recovered(self: TransactionState, now_ms: int) -> list[Any]:
        return []

    def reserve(self: TransactionJournal, now_ms: int, room_ms: int = 1) -> TransactionState:
        state = self.ready()
        state.reserved = state.next_pointer(now_ms) + RESERVE_MS * POINTERS_PER_MS
        return state

    return [(TransactionState, "recovered", recovered), (TransactionJournal, "reserve", reserve)]


def _commit_before_store() -> list[Replacement]:
    """A transaction that lost messages in a power loss stays committed."""
    return [(TransactionsMachine, "_torn", lambda self, edits: set())]


def _apply_before_journal() -> list[Replacement]:
    """Commits are visible before the journal has them, and stay when its write fails."""
    right = TransactionJournal.write

    def write(self: TransactionJournal, edits: Any, durability: Durability, *applied: Any) -> None:
        for edit in edits:
            self.state.apply(edit)
        try:
            right(self, edits, durability, *applied)
        finally:
            self.loaded = self.term

    return [(TransactionJournal, "write", write)]


def _trust_after_failure() -> list[Replacement]:
    """After a failed write the log takes its end to be unchanged."""
    return [(PartitionState, "invalidate", lambda self: None)]


def _read_journal_without_barrier() -> list[Replacement]:
    """After a failed write the journal is read only up to its known end."""

    def ready(self: TransactionJournal) -> TransactionState:
        if not self.known:
            self.load()
            self._reloaded()
        return self.state

    return [(TransactionJournal, "ready", ready), (PartitionLog, "settle", lambda self: None)]


def _forget_tokens() -> list[Replacement]:
    """A repeated commit is done again."""
    return [(TransactionManager, "of_token", lambda self, token: 0)]


def _any_position() -> list[Replacement]:
    """A group's position is moved without checking its precondition."""
    from tms.groups.positions import Positions

    return [(Positions, "check", lambda self, changes: None)]


def _metadata_in_memory() -> list[Replacement]:
    """Metadata of positions are forgotten when the process ends."""
    from tms.groups import group_positions, positions

    def encode_value(committed: CommittedPosition | None) -> bytes | None:
        plain = None if committed is None else CommittedPosition(committed.position)
        return positions.encode_value(plain)

    return [(group_positions, "encode_value", encode_value)]


def _stage_without_sync() -> list[Replacement]:
    """Staged blocks survive the death of the process only."""
    from tms.log import staging

    class Weak:
        SYNCED = Durability.WRITTEN

    return [(staging, "Durability", Weak)]


def _keep_without_invalid() -> list[Replacement]:
    """Snapshots of the state in the journal omit the invalid transactions."""
    from tms.transactions import journal
    from tms.transactions import state_snapshot as kept

    def parts(state: TransactionState) -> Iterator[Any]:
        return (part for part in kept.parts(state) if not part.invalid)

    return [(journal, "parts", parts)]


def _keep_before_sync() -> list[Replacement]:
    """A snapshot of the state is stored before the blocks that it calls committed are synced."""
    right = TransactionJournal.shorten

    def shorten(self: TransactionJournal) -> None:
        self._make_durable = lambda places: None
        right(self)

    return [(TransactionJournal, "shorten", shorten)]


def _expect_at_first_only() -> list[Replacement]:
    """Messages that come between the check of a precondition and the write are not seen."""
    from tms.log.writer import PartitionWriter

    return [(PartitionWriter, "_unexpected", lambda self, precondition, *_: precondition.refusal)]


def _expect_nothing() -> list[Replacement]:
    """A publish is stored whatever its precondition."""
    from tms.log.preconditions import Precondition

    return [(Precondition, "look", lambda self, blocks: None)]


def _any_member() -> list[Replacement]:
    """A replaced member still moves the group's positions."""
    from tms.groups.members import Members

    return [(Members, "check", lambda self, changes: None)]


def _late_tokens() -> list[Replacement]:
    """A token is valid for every delivery of its message."""
    from tms.queues.partition import QueuePartitionState

    right = QueuePartitionState.split

    def split(self: QueuePartitionState, token: Any, *more: Any) -> Any:
        now = self.number(token.offset) if token.offset in self.out else 1
        return right(self, token._replace(deliveries=now), *more)

    return [(QueuePartitionState, "split", split)]


def _count_releases() -> list[Replacement]:
    """A released delivery counts."""
    from tms.queues import state

    return [(state, "released", lambda number: number)]


def _deliveries_in_memory() -> list[Replacement]:
    """Redeliveries are in no journal."""
    from tms.queues.entries import Leased
    from tms.queues.queue import OpenQueue

    right = OpenQueue._add

    def add(self: OpenQueue, edits: Any, *more: Any) -> Any:
        silent = [edit for edit in edits if isinstance(edit[1], Leased)]
        for number, edit in silent:
            self.state.partitions[number].apply(edit, self.now_ms())
        return right(self, [edit for edit in edits if edit not in silent], *more)

    return [(OpenQueue, "_add", add)]


def _settle_without_the_commit() -> list[Replacement]:
    """The acks of a transaction take effect even if it does not commit."""
    from tms.queues import queue_shard
    from tms.queues import replay as loading

    def replayed(entries: Any, learn: Any, clock: Any) -> Any:
        return loading.replayed(entries, lambda _: lambda pointer, issued: Fate.VISIBLE, clock)

    return [(queue_shard, "replayed", replayed)]


def _roll_back_nothing() -> list[Replacement]:
    """Rolled back blocks are still there."""
    return [(PartitionState, "roll_back", lambda self, *args: 0)]


def _move_early() -> list[Replacement]:
    """Messages due within a second are moved with the due ones."""
    from tms.delayed.topic_queue import DelayQueue

    right = DelayQueue.take
    return [(DelayQueue, "take", lambda self, now_ms, *more: right(self, now_ms + 1_000, *more))]


def _move_again() -> list[Replacement]:
    """A start ignores the scheduler's position: entries that were not deleted wait again."""
    from tms.delayed.stored_queue import StoredDelayQueue

    return [(StoredDelayQueue, "_moved", lambda self: ([], 0))]


def _move_what_comes_meanwhile() -> list[Replacement]:
    """A due message that comes while entries are lent is taken for one of them."""
    from tms.delayed.entries import Moved

    return [(Moved, "covers", lambda self, id: id <= (self.due_ms, self.last))]


def _delete_before_commit() -> list[Replacement]:
    """Entries are deleted before they are known to be in the log."""
    from tms.delayed.entries import entry_key
    from tms.delayed.scheduler import Scheduler

    right = Scheduler._commit

    def commit(self: Scheduler, waiting: Any, taken: Any) -> int:
        waiting.stored.delete([entry_key(entry.id) for entry in taken.entries])
        return right(self, waiting, taken)

    return [(Scheduler, "_commit", commit)]


def _forget_cancels() -> list[Replacement]:
    """The scheduler ignores cancellations."""
    from tms.delayed.stored_queue import StoredDelayQueue

    return [(StoredDelayQueue, "cancelled", lambda self, first, last: set())]


def _cancel_what_is_lent() -> list[Replacement]:
    """A cancellation is decided while the scheduler has the message."""
    from tms.delayed.changes import Cancellation
    from tms.delayed.topic_queue import DelayQueue

    def cancel(self: DelayQueue, id: Any, durability: Durability, timeout_s: float) -> bool:
        asked = Cancellation(id, durability)
        self.submit(asked, may_wait=True)
        return bool(asked.answer.result(timeout_s)[0][0])

    return [(DelayQueue, "cancel", cancel), (DelayQueue, "is_taken", lambda self, id: False)]


def _forget_requests() -> list[Replacement]:
    """A repeated request for a delayed publish is stored once more."""
    from tms.delayed.repetitions import Requests

    return [(Requests, "find", lambda self, token, digest: None)]


def _requests_in_memory() -> list[Replacement]:
    """A request for a delayed publish is remembered only until the process ends."""
    from tms.delayed.stored_queue import StoredDelayQueue

    right = StoredDelayQueue.put

    def put(self: StoredDelayQueue, writes: Any) -> None:
        writes.requests.clear()
        right(self, writes)

    return [(StoredDelayQueue, "put", put)]


def _spread_dead_letters_by_default() -> list[Replacement]:
    """Dead letters go where the default partitioner sends their keys, whatever their topic's is."""
    from msgspec.structs import replace

    from tms.model.keys import Partitioner
    from tms.queues import dead_letters

    right = dead_letters._blocks

    def blocks(name: Any, messages: Any, record: Any, home: bool = False) -> Any:
        return right(name, messages, replace(record, partitioner=Partitioner.CRC32C), home)

    return [(dead_letters, "_blocks", blocks)]


BUGS: dict[str, Callable[[], list[Replacement]]] = {
    **CLASSIC,
    **COUNTING,
    **FOLLOWING,
    **GONE,
    **PAGES,
    **STREAMS,
    "acknowledge-before-write": _acknowledge_before_write,
    "any-member": _any_member,
    "any-position": _any_position,
    "apply-before-journal": _apply_before_journal,
    "commit-before-store": _commit_before_store,
    "count-releases": _count_releases,
    "deliveries-in-memory": _deliveries_in_memory,
    "expect-nothing": _expect_nothing,
    "expect-at-first-only": _expect_at_first_only,
    "forget-tokens": _forget_tokens,
    "keep-before-sync": _keep_before_sync,
    "keep-without-invalid": _keep_without_invalid,
    "late-tokens": _late_tokens,
    "metadata-in-memory": _metadata_in_memory,
    "no-fence": _no_fence,
    "pass-open-transactions": _pass_open_transactions,
    "prune-early": _prune_early,
    "read-journal-without-barrier": _read_journal_without_barrier,
    "forget-producers-early": _forget_producers_early,
    "read-uncommitted": _read_uncommitted,
    "roll-back-nothing": _roll_back_nothing,
    "spread-dead-letters-by-default": _spread_dead_letters_by_default,
    "settle-without-the-commit": _settle_without_the_commit,
    "stage-without-sync": _stage_without_sync,
    "skip-deduplication": _skip_deduplication,
    "trust-after-failure": _trust_after_failure,
    "cancel-what-is-lent": _cancel_what_is_lent,
    "delete-before-commit": _delete_before_commit,
    "forget-cancels": _forget_cancels,
    "forget-requests": _forget_requests,
    "move-again": _move_again,
    "move-early": _move_early,
    "move-what-comes-meanwhile": _move_what_comes_meanwhile,
    "requests-in-memory": _requests_in_memory,
}


def planted(name: str) -> AbstractContextManager[None]:
    """While this lasts, the product has the bug."""
    return replaced(BUGS[name]() if name in BUGS else ELSEWHERE[name].plant())
