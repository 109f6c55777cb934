"""A Thrift message in, its answer out: the one file that knows thriftpy2.

Invariants

* Only bytes that `check_message` has passed are read.
* An error that the method does not declare is answered as a TApplicationException, and the
  connection goes on.
* The answer to an unexpected error has no details; the log has them.
"""

from collections.abc import Callable
from importlib import resources
from typing import Any

import thriftpy2
from thriftpy2.protocol import TCyBinaryProtocol
from thriftpy2.thrift import TApplicationException, TMessageType, TProcessor
from thriftpy2.transport import TCyMemoryBuffer

from tms.compat.tephra.checking import check_message
from tms.errors import (
    Invalid,
    InvalidTruncateTime,
    Malformed,
    NotFound,
    TMSError,
    TooLarge,
    TransactionConflict,
    TransactionEnded,
)
from tms.runtime.events import EventLog

JAVA_ILLEGAL_ARGUMENT = "java.lang.IllegalArgumentException"
JAVA_SIZE = "org.apache.tephra.TransactionSizeException"
NO_CLIENT = "unknown"
_STATUS = "status"
_PROTOCOL: Any = TCyBinaryProtocol  # it says no types
_log = EventLog("tms.server")


def load_types() -> Any:
    """The module of Tephra's types, made from the IDL."""
    path = resources.files(__package__).joinpath("transaction.thrift")
    with resources.as_file(path) as file:
        return thriftpy2.load(str(file), module_name="tms_tephra_thrift")


class Messages:
    """Answers messages with the methods of a handler. `confirm_owner` raises when the transactions
    are no more this process's. Thread-safe."""

    def __init__(
        self, types: Any, handler: object, confirm_owner: Callable[[], None] = lambda: None
    ) -> None:
        self._types = types
        self._confirm_owner = confirm_owner
        self._processor = TProcessor(types.TTransactionServer, handler)

    def answer(self, raw: bytes) -> bytes:
        """The answer to a message, without its frame. Raises `Malformed`."""
        check_message(raw)
        incoming = _PROTOCOL(TCyMemoryBuffer(raw), strict_read=False)
        name, number, result, call = self._processor.process_in(incoming)
        if call is None:
            text = name if isinstance(name, str) else repr(name)
            unknown = TApplicationException.UNKNOWN_METHOD
            return _failed(
                name, number, TApplicationException(unknown, f"Invalid method name: '{text}'")
            )
        try:
            if name != _STATUS:  # which says by itself that this one is not ready
                self._confirm_owner()
            result.success = call()
        except Exception as error:
            failure = self._failure(name, error, result)
            if failure is not None:
                return _failed(name, number, failure)
        return _encoded(name, TMessageType.REPLY, number, result)

    def _failure(self, name: str, error: Exception, result: Any) -> Any:
        """Put the error into the result if the method declares it; else what to answer instead."""
        if not isinstance(error, TMSError):
            _log.exception("tephra_failed", method=name)
            return _application(TApplicationException.INTERNAL_ERROR, "Internal error.")
        if self._processor.handle_exception(self._thrift_error(error), result):
            return None
        if isinstance(error, Malformed):
            return _application(TApplicationException.PROTOCOL_ERROR, error.message)
        return _application(TApplicationException.INTERNAL_ERROR, error.message)

    def _thrift_error(self, error: TMSError) -> Any:
        types: Any = self._types
        if isinstance(error, TransactionConflict):
            return types.TTransactionConflictException(
                transactionId=error.details["transaction"],
                conflictingKey=printable(bytes.fromhex(error.details["key"])),
                conflictingClient=error.details.get("client") or NO_CLIENT,
            )
        if isinstance(error, TransactionEnded | NotFound):
            return types.TTransactionNotInProgressException(message=error.message)
        if isinstance(error, InvalidTruncateTime):
            return types.TInvalidTruncateTimeException(message=error.message)
        if isinstance(error, TooLarge):
            return types.TGenericException(error.message, JAVA_SIZE)
        if isinstance(error, Invalid):
            return types.TGenericException(error.message, JAVA_ILLEGAL_ARGUMENT)
        return types.TTransactionCouldNotTakeSnapshotException(message=error.message)


def printable(key: bytes) -> str:
    """A key in the form of Hadoop's `toStringBinary`: ASCII, other bytes and `\\` as \\xNN."""
    return "".join(
        chr(byte) if 0x20 <= byte < 0x7F and byte != 0x5C else f"\\x{byte:02X}" for byte in key
    )


def _application(kind: int, text: str) -> Any:
    return TApplicationException(kind, text)


def _failed(name: str, number: int, failure: Any) -> bytes:
    return _encoded(name, TMessageType.EXCEPTION, number, failure)


def _encoded(name: str, kind: int, number: int, struct: Any) -> bytes:
    out = TCyMemoryBuffer()
    protocol = _PROTOCOL(out)
    protocol.write_message_begin(name, kind, number)
    protocol.write_struct(struct)
    answer: bytes = out.getvalue()
    return answer
