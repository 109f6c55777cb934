"""Headers as Spark has them, a list of pairs, to headers as a block has them, a map.

* A null list is an empty map.
* Headers that a block cannot hold are refused: a name that is null, empty, or twice in one message,
  a value that is too long, too many headers.
"""

import pyarrow as pa
import pyarrow.compute as pc

from tms.block import HEADER_VALUE_BYTES_MAX, HEADERS_MAX
from tms.errors import Invalid


def headers_of(column: pa.Array) -> tuple[pa.Array, pa.Array]:
    """The maps, and how many bytes of names and values each has. Raises `Invalid`."""
    counts = pc.fill_null(pc.list_value_length(column), 0).cast(pa.int32())
    pairs = column.flatten()  # of lists that are not null
    names, texts = (field.cast(kind) for field, kind in zip(pairs.flatten(), _KINDS, strict=True))
    ends = _ends(counts)
    _check(ends, counts, pairs, names, texts)
    maps = pa.MapArray.from_arrays(ends, names, texts)
    text_lengths = pc.fill_null(pc.binary_length(texts), 0)
    lengths = pc.add(pc.binary_length(names), text_lengths).cast(pa.int64())
    bytes_before = _ends(lengths).take(ends)
    return maps, pc.subtract(bytes_before.slice(1), bytes_before.slice(0, len(column)))


_KINDS = (pa.utf8(), pa.binary())


def _ends(counts: pa.Array) -> pa.Array:
    """0, then where each ends."""
    zero = pa.array([0], counts.type)
    return pa.concat_arrays([zero, pc.cumulative_sum(counts)]) if len(counts) else zero


def _check(
    ends: pa.Array, counts: pa.Array, pairs: pa.Array, names: pa.Array, texts: pa.Array
) -> None:
    if not len(pairs):
        return
    most = pc.max(counts).as_py()
    if most > HEADERS_MAX:
        raise _wrong(f"a message has at most {HEADERS_MAX}, a row has {most}")
    if pairs.null_count or names.null_count or not pc.min(pc.binary_length(names)).as_py():
        raise _wrong("a name is not null and not empty")
    longest = pc.max(pc.binary_length(texts)).as_py() or 0
    if longest > HEADER_VALUE_BYTES_MAX:
        raise _wrong(f"a value has at most {HEADER_VALUE_BYTES_MAX} bytes, one has {longest}")
    rows = pc.list_parent_indices(pa.ListArray.from_arrays(ends, names))
    repeated = pa.table([rows, names], ["row", "name"]).group_by(["row", "name"])
    counted = repeated.aggregate([([], "count_all")]).combine_chunks()
    if counted.num_rows < len(names):
        twice = _first(counted["name"], pc.greater(counted["count_all"], 1))
        raise _wrong(f"the name {twice!r} is there twice in one message")


def _first(names: pa.Array | pa.ChunkedArray, mask: pa.Array) -> str:
    repeated: str = names.filter(mask)[0].as_py()
    return repeated[:80]


def _wrong(what: str) -> Invalid:
    return Invalid(f"The column headers: {what}.", field="headers")
