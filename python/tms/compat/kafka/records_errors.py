"""Refusals of record batches, with the codes of Kafka's protocol."""

from enum import IntEnum


class RecordsCode(IntEnum):
    """The codes of Kafka's protocol with which records are refused. A client sends records again
    that arrived damaged, splits a batch that is too large, and gives up on the others."""

    CORRUPT_MESSAGE = 2
    MESSAGE_TOO_LARGE = 10
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_COMPRESSION_TYPE = 76
    INVALID_RECORD = 87


class BadRecords(Exception):
    """Records of a Produce request that are refused as a whole: a sentence for people, the code,
    and the number of the record that is to blame if it is one."""

    def __init__(self, code: RecordsCode, message: str, index: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.index = index
