"""Reading the journal of queues: from entries to the state of queues.

Invariants

* Entries of a transaction count if it is committed; while it is open its messages are held.
* A queue that is not declared has no state: entries of it before its snapshot are ignored.
"""

from collections.abc import Callable, Collection, Iterable

from tms.log.journaled import JournalEntry
from tms.model.snapshot import Fate
from tms.model.topic import TopicName
from tms.queues.entries import (
    Advanced,
    Extended,
    Leased,
    PartitionEdit,
    PartitionSnapshot,
    Returned,
    Settled,
    decode_edit,
    decode_key,
    decode_queue,
)
from tms.queues.runs import offsets_in
from tms.queues.state import QueueState
from tms.runtime.clock import Clock

States = dict[tuple[str, TopicName], QueueState]


Learn = Callable[[Collection[int]], Callable[[int, bool], Fate]]  # of `Decisions`


def replayed(
    entries: Iterable[JournalEntry], learn: Learn, clock: Clock
) -> tuple[States, set[int]]:
    """The queues, and the open transactions that hold some of their messages."""
    entries = list(entries)
    outcome_of = learn({entry.write_pointer for entry in entries} - {0})
    states: States = {}
    now_ms, wall_ms = int(clock.monotonic_s() * 1_000), clock.now_ms()
    for entry in entries:
        group, topic, partition = decode_key(entry.key)
        known = states.get((group, topic))
        if entry.value is None:
            states.pop((group, topic), None)
        elif partition is None:
            declared = decode_queue(entry.key, entry.value)
            if known is not None and known.declared.epoch == declared.epoch:
                known.change(declared)
            else:
                states[group, topic] = QueueState(declared)
        elif known is not None:
            edit = decode_edit(entry.key, entry.value)
            state = known.partitions[partition]
            if not entry.write_pointer:
                state.apply(edit, now_ms, max(0, wall_ms - _when_ms(edit, wall_ms)))
            elif isinstance(edit, Settled):
                outcome = outcome_of(entry.write_pointer, True)
                if outcome is Fate.VISIBLE:
                    state.apply(edit, now_ms)
                elif outcome is Fate.OPEN:
                    state.hold(offsets_in(edit.runs), entry.write_pointer)
    return states, _end_decided(states, learn, now_ms)


def _end_decided(states: States, learn: Learn, now_ms: int) -> set[int]:
    """End the holds of transactions that have ended; returns the write pointers of the others."""
    open_ones = set()
    outcome_of = learn({pointer for queue in states.values() for pointer in queue.holders()})
    for queue in states.values():
        for state in queue.partitions.values():
            for pointer in set(state.held.values()):
                outcome = outcome_of(pointer, True)
                if outcome is Fate.OPEN:
                    open_ones.add(pointer)
                else:
                    state.end(pointer, outcome is Fate.VISIBLE, now_ms)
    return open_ones


def _when_ms(edit: PartitionEdit, wall_ms: int) -> int:
    if isinstance(edit, Advanced | Leased | Returned | Extended | PartitionSnapshot):
        return edit.when_ms
    return wall_ms
