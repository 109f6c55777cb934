"""TEMPORARY, until the conversion is merged."""
from typing import NamedTuple
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from tms.compat.kafka.errors import Code
from tms.block import pack, decode as decode_block, read_header, index_of
import struct

class Refused(Exception):
    def __init__(self, code, message):
        super().__init__(message); self.code = code

class Batch(NamedTuple):
    blocks: list

def decode(data, bytes_max):
    b = DefaultRecordBatch(bytearray(data))
    if not b.validate_crc(): raise Refused(Code.CORRUPT_MESSAGE, "crc")
    keys, values, headers = [], [], []
    for r in b:
        keys.append(r.key); values.append(r.value); headers.append(dict(r.headers))
    from tms.block import write_header
    blk = pack(values, keys, headers, 48); write_header(blk, len(values), 0, 0)
    return Batch([blk])

def gap(a, b):
    return encode_raw(a, b - a - 1, [], 0)

def encode_raw(base, last_delta, rows, ms):
    bb = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, 0, 1<<30)
    for d, k, v, h in rows:
        bb.append(d, ms, k, v, h)
    raw = bytearray(bb.build()) if rows else bytearray(61)
    if not rows:
        struct.pack_into(">qiib", raw, 0, 0, 49, 0, 2)
        struct.pack_into(">hiqqqhii", raw, 21, 8, 0, -1, -1, -1, -1, -1, 0)
    struct.pack_into(">q", raw, 0, base)
    struct.pack_into(">i", raw, 12, -1)
    struct.pack_into(">hi", raw, 21, 8, last_delta)
    struct.pack_into(">qq", raw, 27, ms, ms)
    import google_crc32c
    struct.pack_into(">I", raw, 17, google_crc32c.value(bytes(raw[21:])))
    return bytes(raw)

class EncodedBatches:
    def __init__(self, size): pass
    def of(self, stored):
        h = read_header(stored.block); c = decode_block(stored.block); idx = index_of(stored.block, h)
        rows = [(d, k, v, list(hh.items())) for d, k, v, hh in zip(idx, c.keys(), c.values(), c.headers())]
        return encode_raw(h.base_offset, h.count - 1, rows, stored.time_ms), h.base_offset + h.count
