"""The rules for producers whose sequences count messages, as Kafka's do (pure functions).

    sequence of a block       that of its first message, 0 to 2^31 - 1; 0 follows 2^31 - 1
    next sequence             the newest block's, plus its number of messages
    producer id               NUMBER << 16 | EPOCH: all epochs of a number are one producer

Invariants

* A producer's messages are stored in the order of their sequences, without gaps and once each, for
  as long as the producer is remembered. The first block of an unknown producer may have any
  sequence, the first one of a new epoch has 0.
* Nothing is stored for an epoch once a later epoch of its number is known.
* The blocks of a producer in a request and partition are one append: full blocks that follow one
  another, and a last one of any size. Its first block decides for all: they are stored, now or
  before, or none is. A crash may leave only the first ones of them; the repetition of the append
  stores the others.
* The newest `APPENDS_REMEMBERED` appends of a producer are known exactly, if they have no more than
  `BLOCKS_MAX` blocks.
"""

from collections import deque
from collections.abc import Iterable, Sequence

from tms.block import EPOCH_BITS, MESSAGE_SEQUENCES, MESSAGES_MAX, BlockHeader
from tms.errors import Invalid, OutOfOrderSequence, SequenceReused, StaleEpoch
from tms.log.records import RememberedBlock

APPENDS_REMEMBERED = 8  # Kafka's clients have at most 5 in flight
APPEND_BLOCKS_MAX = 12
BLOCKS_MAX = 64  # of a producer; five appends have 60 at most


def find_counted(
    header: BlockHeader, producer_id: int, blocks: Sequence[RememberedBlock]
) -> RememberedBlock | None:
    """The stored block that `header` repeats, None if `header` is the producer's next one.
    `producer_id` has the newest known epoch, `blocks` are its newest blocks, at least one. A block
    is repeated by its sequence and count alone: who packs the messages again may get other bytes.

    Raises `StaleEpoch`; `OutOfOrderSequence` for a gap, for a new epoch that does not begin at 0,
    and for messages whose place in the log is not certain any more; `SequenceReused` if all of the
    messages are stored, but not as this block.
    """
    number, epoch = divmod(header.producer_id, 1 << EPOCH_BITS)
    newest = producer_id % (1 << EPOCH_BITS)
    sequence = header.producer_sequence
    if epoch < newest:
        raise StaleEpoch(
            f"Producer {number} sent sequence {sequence} under epoch {epoch}, but its epoch "
            f"{newest} has published here and took its place. Stop, or get a new producer id.",
            newest=newest,
        )
    wanted = 0 if epoch > newest else next_sequence(blocks[-1])
    if sequence == wanted:
        return None
    if epoch == newest:
        for block in blocks:
            if (block.producer_sequence, block.count) == (sequence, header.count):
                return block
        behind, known = (
            (wanted - start) % MESSAGE_SEQUENCES
            for start in (sequence, blocks[0].producer_sequence)
        )
        if header.count <= behind <= known:
            raise SequenceReused(
                f"The {header.count} messages of producer {number} from sequence {sequence} on are "
                f"stored, but not as one block; the next sequence is {wanted}. Go on with that.",
                expected=wanted,
            )
    raise OutOfOrderSequence(
        f"Producer {number} sent sequence {sequence} under epoch {epoch} where {wanted} is next. "
        "Send the missing messages first, or begin at 0 under a new epoch.",
        expected=wanted,
    )


def next_sequence(block: RememberedBlock) -> int:
    """The sequence of the message behind a block."""
    return (block.producer_sequence + block.count) % MESSAGE_SEQUENCES


def trim(blocks: deque[RememberedBlock]) -> None:
    """Drop the oldest blocks of a producer that need not be remembered."""
    while len(blocks) > APPENDS_REMEMBERED and _appends(blocks) > APPENDS_REMEMBERED:
        blocks.popleft()


def _appends(blocks: Iterable[RememberedBlock]) -> int:
    return sum(block.count < MESSAGES_MAX for block in blocks)


def require_appends(headers: Iterable[tuple[int, BlockHeader]]) -> None:
    """Raise `Invalid` unless the blocks of each producer in a partition are one append: they follow
    one another, all but the last are full, and they are at most `APPEND_BLOCKS_MAX`. `headers` are
    those of a request, each with its partition."""
    before: dict[tuple[int, int], tuple[BlockHeader, int]] = {}
    for partition, header in headers:
        number = header.producer_id >> EPOCH_BITS
        last, blocks = before.get((partition, number), (None, 0))
        if last is not None and (
            last.count < MESSAGES_MAX
            or header.producer_id != last.producer_id
            or header.producer_sequence != (last.producer_sequence + last.count) % MESSAGE_SEQUENCES
        ):
            raise Invalid(
                f"A request has one append of producer {number} for partition {partition}: blocks "
                f"of {MESSAGES_MAX} messages that follow one another, and a last one of any size. "
                f"Sequence {header.producer_sequence} does not belong to it. Send it in another "
                "request.",
                partition=partition,
            )
        if blocks == APPEND_BLOCKS_MAX:
            raise Invalid(
                f"An append has at most {APPEND_BLOCKS_MAX} blocks, that of producer {number} for "
                f"partition {partition} has more. Publish fewer messages together.",
                partition=partition,
            )
        before[partition, number] = header, blocks + 1
