"""Removing messages from a block: the only way in which stored messages are removed from it.

    0123456789      ten messages, offsets 70 to 79
    ── thin(…, [1, 4, 9]) ─▶
    ·1··4····9      sparse: its header says ten from offset 70 on, its index 1 4 9; 71, 74 and 79

Invariants

* The remaining messages keep id, offset, key, value, headers and event time; the block keeps its
  header except flag and CRC, its compression, and its key in the store. It has no column of times
  any more once no message is left that has one.
* Thinning is idempotent: the same messages may be removed again, in any order.
* A block always has a message: a block without one is not stored at all.
"""

from collections.abc import Sequence

from tms.block.arrow import Compression, library
from tms.block.columns import Columns, decode
from tms.block.header import HEADER_BYTES, Flags, pack_index, place, read_header, write_header
from tms.block.packing import compress, pack, pack_batch
from tms.block.times import pack_times
from tms.errors import Invalid
from tms.model.message import Buffer


def thin(block: Buffer, keep: Sequence[int], columns: Columns | None = None) -> bytearray:
    """The block with only the messages in `keep`, ascending places among those that the block has.
    `columns` are the block's, if the caller has them already. Raises `Invalid` to keep none,
    `DataCorrupt`."""
    if not keep:
        raise Invalid("A block keeps at least one message; leave it out instead.")
    columns = columns or decode(block)
    if len(keep) == columns.count:
        return bytearray(block)
    header = read_header(block)
    index = columns.index
    prefix = pack_index([index[at] for at in keep])
    times = b""
    if columns.times is not None:
        cells = columns.event_times()
        times = pack_times([cells[at] for at in keep], len(keep))
    prefix += times
    thinned = _body(columns, keep, HEADER_BYTES + len(prefix))
    if columns.compression is not Compression.NONE:
        thinned = compress(thinned, HEADER_BYTES + len(prefix), columns.compression)
    thinned[HEADER_BYTES : HEADER_BYTES + len(prefix)] = prefix
    write_header(thinned, header.count, header.producer_id, header.producer_sequence, bool(times))
    place(thinned, header.base_offset, header.flags | Flags.SPARSE, header.write_pointer)
    return thinned


def _body(columns: Columns, keep: Sequence[int], room: int) -> bytearray:
    if columns.few:
        keys = columns.keys()
        values = columns.values()
        return pack(
            [values[at] for at in keep],
            [keys[at] for at in keep],
            columns.header_cells().take(keep),
            room,
        )
    pa = library()
    return pack_batch(columns.record_batch().take(pa.array(keep, pa.int32())), room)
