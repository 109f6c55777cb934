"""A snapshot of a partition's state, in chunks that fit into the journal."""

from collections.abc import Iterator

from tms.queues.entries import PartitionSnapshot
from tms.queues.key_order import pack
from tms.queues.partition import TIME_SHIFT, QueuePartitionState
from tms.queues.runs import Runs, offsets_in

RUNS_MAX = 20_000  # of a chunk


def chunks_of(
    state: QueuePartitionState, now_ms: int, when_ms: int, runs_max: int | None = None
) -> Iterator[PartitionSnapshot]:
    """The state as it is now; `when_ms` is the wall time."""
    runs, values = _runs(state, now_ms)
    runs_max = runs_max or RUNS_MAX
    chunks = max(1, -(-len(values) // runs_max))
    held = [(pointer, offset, 1) for offset, pointer in state.held.items()]
    for number in range(chunks):
        start, stop = number * runs_max, (number + 1) * runs_max
        part = runs[2 * start : 2 * stop]
        hashes, causes = b"", {}
        if state.order is not None:
            hashes = pack(map(state.order.hash_of, offsets_in(part)))
        if state.causes:
            pairs = ((offset, state.causes.get(offset)) for offset in offsets_in(part))
            causes = {offset: cause for offset, cause in pairs if cause is not None}
        yield PartitionSnapshot(
            number,
            chunks,
            state.frontier,
            state.at,
            when_ms,
            part,
            values[start:stop],
            hashes,
            causes,
            held if number == 0 else [],
        )


def _runs(state: QueuePartitionState, now_ms: int) -> tuple[Runs, list[int]]:
    """Runs of what is not settled, and the value of each, with the time that is left."""
    runs: Runs = []
    values: list[int] = []
    low_bits = (1 << TIME_SHIFT) - 1
    for offset in sorted(state.out):
        value = state.out[offset]
        value = max(0, (value >> TIME_SHIFT) - now_ms) << TIME_SHIFT | value & low_bits
        if runs and runs[-2] + runs[-1] == offset and values[-1] == value:
            runs[-1] += 1
        else:
            runs += (offset, 1)
            values.append(value)
    return runs, values
