"""The one error tree of TMS.

Every error that a caller can meet is a `TMSError` with a stable `code` (the last part of the
`type` of an HTTP problem document), a sentence that says what was wrong, where and what to do
next, and JSON-able `details`.

* `retriable` says whether the same call may succeed later without a change.
* `kind` groups codes by meaning; `api.routes` maps kinds to HTTP status numbers, `cli` maps them
  to exit codes.
* A code never changes once released. `from_code` rebuilds the error on the client's side.
"""

from enum import StrEnum
from typing import Any, ClassVar


class ErrorKind(StrEnum):
    """The meaning of an error to its caller."""

    MALFORMED = "malformed"  # the bytes cannot be understood
    INVALID = "invalid"  # understood, but not acceptable
    TOO_LARGE = "too-large"
    UNSUPPORTED_MEDIA = "unsupported-media"
    NOT_ACCEPTABLE = "not-acceptable"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not-found"
    CONFLICT = "conflict"
    GONE = "gone"
    SLOW = "slow"  # the caller took too long to send
    OVERLOADED = "overloaded"
    STORAGE_FULL = "storage-full"
    UNAVAILABLE = "unavailable"
    CORRUPT = "corrupt"
    INTERNAL = "internal"
    ALREADY_RUNNING = "already-running"
    CONFIG = "config"
    TIMED_OUT = "timed-out"
    CLOSED = "closed"


_BY_CODE: dict[str, type["TMSError"]] = {}


class TMSError(Exception):
    """Root of all errors that TMS raises on purpose.

    `message` is a sentence for people; `details` holds JSON-able facts, e.g. `index=7` for the
    seventh message.
    """

    code: ClassVar[str] = "internal"
    kind: ClassVar[ErrorKind] = ErrorKind.INTERNAL
    retriable: ClassVar[bool] = False

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "code" in cls.__dict__:
            _BY_CODE[cls.code] = cls


def from_code(code: str, message: str, details: dict[str, Any]) -> TMSError:
    """The error with this code; a `TMSError` that keeps the code in its details when it is not
    known here."""
    cls = _BY_CODE.get(code)
    if cls is None:
        return TMSError(message, code=code, **{k: v for k, v in details.items() if k != "code"})
    error = cls.__new__(cls)
    TMSError.__init__(error, message, **details)
    return error


def without_frames(error: BaseException | None) -> None:
    """Forget through which calls an error that was dealt with came: their variables hold what the
    error was about, and they and the error may hold each other until the garbage collector
    comes."""
    while error is not None and error.__traceback__ is not None:  # a cause may be its own
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def codes() -> dict[str, type[TMSError]]:
    """All known codes and their classes."""
    return dict(_BY_CODE)


class Malformed(TMSError):
    """The request or the bytes cannot be understood."""

    code, kind = "malformed", ErrorKind.MALFORMED


class BadJson(Malformed):
    """The body is not the strict JSON that TMS reads (RFC 8259, UTF-8, no duplicate keys)."""

    code = "bad-json"


class BadEncoding(Malformed):
    """The body's Content-Encoding cannot be undone, or a base64 value is wrong."""

    code = "bad-encoding"


class BadMessageId(Malformed):
    """A message id is not 40 hexadecimal digits."""

    code = "bad-message-id"


class BadBlock(Malformed):
    """A block's header or body is not a valid block."""

    code = "bad-block"


class CrcMismatch(BadBlock):
    """The CRC-32C of a block's body differs from its header."""

    code = "crc-mismatch"


class Invalid(TMSError, ValueError):
    """A value is well-formed but not allowed. Also a `ValueError`."""

    code, kind = "invalid", ErrorKind.INVALID


class Undecodable(Invalid):
    """The value of a message cannot be read by the serializer that was given; `details` carry the
    `id` of the message and its `topic`. The message was handed out: go on
    with the next one, or publish it elsewhere."""

    code = "undecodable"


class IdempotencyKeyReused(Invalid):
    """A publish came with the Idempotency-Key of another one."""

    code = "idempotency-key-reused"


class TooLarge(TMSError):
    """A body, batch or message is over its configured limit."""

    code, kind = "too-large", ErrorKind.TOO_LARGE


class DecompressedTooLarge(TooLarge):
    """A compressed body would be over the limit once decompressed."""

    code = "decompressed-too-large"


class UnsupportedMedia(TMSError):
    """The Content-Type or Content-Encoding is none that TMS reads."""

    code, kind = "unsupported-media-type", ErrorKind.UNSUPPORTED_MEDIA


class NotAcceptable(TMSError):
    """The Accept header names no representation that TMS makes."""

    code, kind = "not-acceptable", ErrorKind.NOT_ACCEPTABLE


class Unauthenticated(TMSError):
    """The request has no token, or one that is not valid."""

    code, kind = "unauthenticated", ErrorKind.UNAUTHENTICATED


class Forbidden(TMSError):
    """The caller may not do this: it has no grant for it, or no caller may, e.g. write to the
    namespace `system`."""

    code, kind = "forbidden", ErrorKind.FORBIDDEN


class NotFound(TMSError, LookupError):
    """The named thing does not exist. Also a `LookupError`."""

    code, kind = "not-found", ErrorKind.NOT_FOUND


class TopicNotFound(NotFound):
    """The topic does not exist."""

    code = "topic-not-found"


class PartitionNotFound(NotFound):
    """The topic has no such partition."""

    code = "partition-not-found"


class Conflict(TMSError):
    """The request contradicts the present state."""

    code, kind = "conflict", ErrorKind.CONFLICT


class TopicExists(Conflict):
    """The topic exists with other settings."""

    code = "topic-exists"


class WrongLastId(Conflict):
    """The last message of a key, or of a partition, is not the one that a publish expected; details
    carry `last` and `expected`. Nothing was stored: read on, and decide again."""

    code = "wrong-last-id"


class Fenced(Conflict):
    """The caller has lost what it works on: a lease has ended, or an owner was replaced. Do not
    repeat the call; go on with the present state."""

    code = "fenced"


class QueueNotFound(NotFound):
    """The topic has no such queue. Declare it first."""

    code = "queue-not-found"


class GroupNotFound(NotFound):
    """No such group is known in the topic: it has neither members nor positions."""

    code = "group-not-found"


class TransactionNotFound(NotFound):
    """No such transaction is known: it never was, or ended longer ago than is remembered."""

    code = "transaction-not-found"


class TransactionConflict(Conflict):
    """Another transaction that committed meanwhile changed the same key; details carry `key`. Roll
    back, and do the whole transaction again."""

    code = "transaction-conflict"


class TransactionEnded(Conflict):
    """The transaction has ended, so this cannot be done in it any more; details carry
    `outcome`."""

    code = "transaction-ended"


class TransactionTimedOut(TransactionEnded):
    """The transaction was open for longer than its time-out, and is invalid."""

    code = "transaction-timed-out"


class CommitUnfinished(TMSError):
    """A participant has committed, or may have, which cannot be taken back, and the rest of its
    transaction follows with its recovery. Not retriable: doing the transaction again would do it
    twice."""

    code, kind = "commit-unfinished", ErrorKind.UNAVAILABLE


class PostCommitFailed(TMSError):
    """The transaction is committed; what a participant does afterwards failed. Details carry
    `transaction`."""

    code = "post-commit-failed"


class OutcomeUnknown(TMSError):
    """Messages may be stored or not, and the service cannot tell any more: the answer to their
    publish was lost, and their producer was forgotten since. Details carry `topic`, `partition` and
    `messages`, their number. Not retriable: publishing them again may store them twice. Read the
    partition to see, or publish again if twice does no harm."""

    code, kind = "outcome-unknown", ErrorKind.UNAVAILABLE


class InvalidTruncateTime(Conflict):
    """Transactions from before that time are still in progress."""

    code = "invalid-truncate-time"


class FewerPartitions(Conflict):
    """The number of partitions of a topic can only grow."""

    code = "fewer-partitions"


class OutOfOrderSequence(Conflict):
    """A producer's block came before an earlier one of the same producer. Retriable: send the
    missing one first."""

    code, retriable = "out-of-order-sequence", True


class SequenceReused(Conflict):
    """A producer sent a different block under a sequence number that is stored already. If its
    sequence counts messages: all of the block's messages are stored, in other blocks."""

    code = "sequence-reused"


class StaleEpoch(Fenced):
    """A producer whose sequence counts messages sent a block under an earlier epoch of its number
    than the partition has seen; details carry `newest`, the newest epoch. Its place was taken by a
    later one: do not repeat the block."""

    code = "stale-epoch"


class OffsetOutOfRange(TMSError):
    """The offset asked for is no longer readable, or beyond the end; details carry `earliest` and
    `end`."""

    code, kind = "offset-out-of-range", ErrorKind.GONE

    def nearest(self, offset: int) -> int:
        """The offset in range that is nearest to this one."""
        earliest = int(self.details.get("earliest", 0))
        return max(earliest, min(offset, int(self.details.get("end", earliest))))


class SlowRequest(TMSError):
    """The caller did not send its request in time."""

    code, kind, retriable = "request-timeout", ErrorKind.SLOW, True


class Overloaded(TMSError):
    """Memory in flight is at its bound; try again after `retry_after_s`."""

    code, kind, retriable = "overloaded", ErrorKind.OVERLOADED, True


class StorageFull(TMSError):
    """The disk is full. Nothing of the request was acknowledged; reads go on."""

    code, kind, retriable = "storage-full", ErrorKind.STORAGE_FULL, True


class StorageUnavailable(TMSError):
    """The store cannot be written or read at the moment; the outcome of a write is unknown until
    retried."""

    code, kind, retriable = "storage-unavailable", ErrorKind.UNAVAILABLE, True


class Unavailable(TMSError, ConnectionError):
    """The service cannot be reached, is starting or is draining. Also a `ConnectionError`."""

    code, kind, retriable = "unavailable", ErrorKind.UNAVAILABLE, True


class NotOwner(Unavailable):
    """Another process owns the store, or another instance this part of it; details carry the name
    of the `owner` if it is known. What this call was to store may or may not be stored. Retriable:
    at any instance, or at the owner of the store."""

    code = "not-owner"


class DataCorrupt(TMSError):
    """Stored bytes are damaged. TMS never delivers them; `tms fsck` names and repairs."""

    code, kind = "data-corrupt", ErrorKind.CORRUPT


class AlreadyRunning(TMSError):
    """Another process, or this one, has the data directory open."""

    code, kind = "already-running", ErrorKind.ALREADY_RUNNING


class ConfigError(TMSError):
    """The configuration is wrong; the message lists every fault with its key and source."""

    code, kind = "config", ErrorKind.CONFIG


class TimedOut(TMSError, TimeoutError):
    """The call's deadline passed. A publish that timed out may or may not have been stored. Also a
    `TimeoutError`."""

    code, kind, retriable = "timed-out", ErrorKind.TIMED_OUT, True


class Closed(TMSError):
    """The object was used after it was closed."""

    code, kind = "closed", ErrorKind.CLOSED


class ViewFailed(Closed):
    """A view's own function failed, so that it cannot go on; the cause is attached. Mend it, and
    make the view again."""

    code = "view-failed"


def again(error: TMSError) -> TMSError:
    """A copy of an error, to be raised once more; the error itself would keep the frames of every
    caller."""
    return type(error)(error.message, **error.details)
