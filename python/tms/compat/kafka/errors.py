"""Kafka's error codes, and the code of each error of TMS."""

from enum import IntEnum

from tms.errors import (
    Closed,
    Conflict,
    CrcMismatch,
    FewerPartitions,
    Forbidden,
    Invalid,
    Malformed,
    NotOwner,
    OffsetOutOfRange,
    OutOfOrderSequence,
    Overloaded,
    PartitionNotFound,
    SequenceReused,
    SlowRequest,
    StaleEpoch,
    StorageFull,
    StorageUnavailable,
    TimedOut,
    TMSError,
    TooLarge,
    TopicExists,
    TopicNotFound,
    Unavailable,
)


class ErrorCode(IntEnum):
    """Error codes of Kafka's protocol, by Kafka's names."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    MESSAGE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    INVALID_REQUEST = 42
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    UNKNOWN_TOPIC_ID = 100
    TRANSACTIONAL_ID_NOT_FOUND = 105


class BadRecords(Exception):
    """Records of a Produce request that are refused as a whole: a sentence for people, the code,
    and the number of the record that is to blame if it is one."""

    def __init__(self, code: ErrorCode, message: str, index: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.index = index


# The first class that an error belongs to names its code: subclasses stand before their bases.
_CODES: tuple[tuple[type[TMSError], ErrorCode], ...] = (
    (OffsetOutOfRange, ErrorCode.OFFSET_OUT_OF_RANGE),
    (TopicNotFound, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (PartitionNotFound, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (TopicExists, ErrorCode.TOPIC_ALREADY_EXISTS),
    (FewerPartitions, ErrorCode.INVALID_PARTITIONS),
    (CrcMismatch, ErrorCode.CORRUPT_MESSAGE),
    (StaleEpoch, ErrorCode.INVALID_PRODUCER_EPOCH),
    (OutOfOrderSequence, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    (SequenceReused, ErrorCode.DUPLICATE_SEQUENCE_NUMBER),
    (TooLarge, ErrorCode.MESSAGE_TOO_LARGE),
    (NotOwner, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    (StorageFull, ErrorCode.KAFKA_STORAGE_ERROR),
    (StorageUnavailable, ErrorCode.KAFKA_STORAGE_ERROR),
    (Overloaded, ErrorCode.REQUEST_TIMED_OUT),  # which clients repeat after a pause
    (TimedOut, ErrorCode.REQUEST_TIMED_OUT),
    (SlowRequest, ErrorCode.REQUEST_TIMED_OUT),
    (Unavailable, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    (Closed, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    (Conflict, ErrorCode.INVALID_REQUEST),
    (Malformed, ErrorCode.CORRUPT_MESSAGE),
    (Invalid, ErrorCode.INVALID_REQUEST),
)

# The field that is invalid says more.
_FIELDS = {
    "topic": ErrorCode.INVALID_TOPIC_EXCEPTION,
    "group": ErrorCode.INVALID_GROUP_ID,
    "metadata": ErrorCode.OFFSET_METADATA_TOO_LARGE,
    "partitions": ErrorCode.INVALID_PARTITIONS,
    "replication_factor": ErrorCode.INVALID_REPLICATION_FACTOR,
    "assignments": ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    "config": ErrorCode.INVALID_CONFIG,
}
# So does the kind of a resource, or the field, that is forbidden.
_KINDS = {
    "group": ErrorCode.GROUP_AUTHORIZATION_FAILED,
    "some-group": ErrorCode.GROUP_AUTHORIZATION_FAILED,
    "some-topic": ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    "cluster": ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    "service": ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    "transactions": ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


def code_of(error: TMSError) -> ErrorCode:
    """The code that tells a client of Kafka what this error says."""
    if isinstance(error, Invalid) and error.details.get("field") in _FIELDS:
        return _FIELDS[error.details["field"]]
    if isinstance(error, Forbidden):
        named = error.details.get("field") or error.details.get("resource", "")
        return _KINDS.get(str(named).partition(":")[0], ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    return next(
        (code for cls, code in _CODES if isinstance(error, cls)), ErrorCode.UNKNOWN_SERVER_ERROR
    )


def coordinator_code(error: TMSError) -> ErrorCode:
    """The code that tells a client of Kafka the same of a coordinator, of a group or of
    transactions: clients repeat what may pass."""
    if isinstance(error, NotOwner | Unavailable | Closed):
        return ErrorCode.NOT_COORDINATOR
    return ErrorCode.COORDINATOR_NOT_AVAILABLE if error.retriable else code_of(error)
