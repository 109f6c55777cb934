"""Requests and answers of a client of CDAP: the bodies that `tms.compat.cdap.avro` describes."""

from tms.compat.cdap.avro import (
    END,
    AvroReader,
    ConsumeRequest,
    PublishRequest,
    broken,
    long,
    optional,
)
from tms.model.message import Buffer


def encode_publish(request: PublishRequest) -> bytes:
    """A body of publish or store."""
    parts = [optional(request.write_pointer)]
    payloads = list(request.payloads)
    if payloads:
        parts += (long(len(payloads)), *map(_bytes, payloads))
    parts.append(END)
    return b"".join(parts)


def encode_consume(request: ConsumeRequest) -> bytes:
    """A body of poll."""
    if isinstance(request.start, bytes):
        start = b"\x00" + _bytes(request.start)
    else:
        start = b"\x04" if request.start is None else b"\x02" + long(request.start)
    transaction = b"\x02" if request.transaction is None else b"\x00" + _bytes(request.transaction)
    return b"".join((start, bytes((request.inclusive,)), optional(request.limit), transaction))


def decode_messages(body: Buffer) -> list[tuple[bytes, bytes]]:
    """The answer to a poll. Raises `Malformed`."""
    reader = AvroReader(body)
    found: list[tuple[bytes, bytes]] = []
    while count := reader.long():
        if not 0 < count <= reader.left:
            raise broken(f"says {count} messages where {reader.left} bytes are left")
        found += [(reader.data(), reader.data()) for _ in range(count)]
    reader.end()
    return found


def _bytes(value: bytes) -> bytes:
    return long(len(value)) + value
