"""Which blocks of which producers a partition has stored, so that a repeated block is recognised
(pure state).

Invariants

* A producer's blocks are stored in the order of its sequence numbers, without gaps and once each.
* The newest `BLOCKS_REMEMBERED` blocks of each producer are known exactly: a repetition gets the
  ids of the first one.
* Memory is bounded: beyond `producers_max` the producer that has been silent for longest is
  forgotten. A forgotten producer that goes on is refused with `OutOfOrderSequence` and begins anew
  under a new id.
"""

from collections import OrderedDict, deque

from tms.block import BlockHeader
from tms.errors import OutOfOrderSequence, SequenceReused
from tms.log.records import RememberedBlock

BLOCKS_REMEMBERED = 8
SEQUENCE_LIMIT = 1 << 32


class ProducerWindow:
    """The remembered producers of one partition. Not thread-safe; the partition's committer owns
    it."""

    def __init__(self, producers_max: int) -> None:
        self._max = producers_max
        self._blocks: OrderedDict[int, deque[RememberedBlock]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def find(self, header: BlockHeader) -> RememberedBlock | None:
        """The stored block that `header` repeats, None when it is the producer's next one.

        Raises `OutOfOrderSequence` when blocks before it are missing, `SequenceReused` when its
        number was used for something else or so long ago that it is no longer known.
        """
        blocks = self._blocks.get(header.producer_id)
        wanted = 0 if blocks is None else (blocks[-1].producer_sequence + 1) % SEQUENCE_LIMIT
        if header.producer_sequence == wanted:
            return None
        for block in blocks or ():
            if block.producer_sequence == header.producer_sequence:
                if (block.crc, block.count) != (header.crc, header.count):
                    raise SequenceReused(
                        f"Producer {header.producer_id} sent another block as sequence "
                        f"{header.producer_sequence}. Give each block its own sequence number.",
                        producer_sequence=header.producer_sequence,
                    )
                return block
        if blocks is not None and _is_older(header.producer_sequence, wanted):
            raise SequenceReused(
                f"Sequence {header.producer_sequence} of producer {header.producer_id} was stored "
                f"long ago; the next one is {wanted}.",
                expected=wanted,
            )
        raise OutOfOrderSequence(
            f"Producer {header.producer_id} sent sequence {header.producer_sequence} where "
            f"{wanted} is next. Send the missing block first, or begin anew with a new "
            "producer id and sequence 0.",
            expected=wanted,
        )

    def remember(self, producer_id: int, block: RememberedBlock) -> None:
        """Take note of a block that is being stored."""
        blocks = self._blocks.get(producer_id)
        if blocks is None:
            blocks = self._blocks[producer_id] = deque(maxlen=BLOCKS_REMEMBERED)
            if len(self._blocks) > self._max:
                self._blocks.popitem(last=False)
        else:
            self._blocks.move_to_end(producer_id)
        blocks.append(block)

    def dump(self) -> dict[str, tuple[RememberedBlock, ...]]:
        """The whole window, longest silent producer first."""
        return {str(producer): tuple(blocks) for producer, blocks in self._blocks.items()}

    def load(self, producers: dict[str, tuple[RememberedBlock, ...]]) -> None:
        """Replace the window with a dumped one."""
        self._blocks.clear()
        for producer, blocks in producers.items():
            for block in blocks:
                self.remember(int(producer), block)


def _is_older(sequence: int, wanted: int) -> bool:
    return (wanted - sequence) % SEQUENCE_LIMIT < SEQUENCE_LIMIT // 2
