# What clients of Apache Tephra send and read: framed, TBinaryProtocol, one service.
# Numbers and names of methods, fields and exceptions are the protocol; nothing here may change.

namespace java org.apache.tephra.distributed.thrift

enum TTransactionType {
  SHORT = 1,
  LONG = 2
}

enum TVisibilityLevel {
  SNAPSHOT = 1,
  SNAPSHOT_EXCLUDE_CURRENT = 2,
  SNAPSHOT_ALL = 3
}

# A transaction and what it sees.
struct TTransaction {
  1: i64 transactionId,
  2: i64 readPointer,
  3: list<i64> invalids,
  4: list<i64> inProgress,
  5: i64 firstShort,
  6: TTransactionType type,
  7: i64 writePointer,
  8: list<i64> checkpointWritePointers,
  9: TVisibilityLevel visibilityLevel
}

struct TBoolean {
  1: bool value
}

exception TTransactionNotInProgressException {
  1: string message
}

exception TTransactionConflictException {
  1: i64 transactionId,
  2: string conflictingKey,
  3: string conflictingClient
}

exception TInvalidTruncateTimeException {
  1: string message
}

exception TTransactionCouldNotTakeSnapshotException {
  1: string message
}

# originalExceptionClass: the Java class that Tephra's own server would have thrown.
exception TGenericException {
  1: string message,
  2: string originalExceptionClass
}

service TTransactionServer {
  # Starting. Time-outs are seconds.
  TTransaction startLong(),
  TTransaction startLongClientId(1: string clientId) throws (1: TGenericException e),
  TTransaction startShort(),
  TTransaction startShortTimeout(1: i32 timeout),
  TTransaction startShortClientId(1: string clientId) throws (1: TGenericException e),
  TTransaction startShortWithClientIdAndTimeOut(1: string clientId, 2: i32 timeout)
    throws (1: TGenericException e),
  TTransaction startShortWithTimeout(1: i32 timeout) throws (1: TGenericException e),
  TTransaction checkpoint(1: TTransaction tx) throws (1: TTransactionNotInProgressException e),

  # Committing. The older two answer false for a conflict.
  TBoolean canCommitTx(1: TTransaction tx, 2: set<binary> changes)
    throws (1: TTransactionNotInProgressException e),
  void canCommitOrThrow(1: i64 tx, 2: set<binary> changes)
    throws (1: TTransactionNotInProgressException e, 2: TTransactionConflictException c,
            3: TGenericException g),
  TBoolean commitTx(1: TTransaction tx) throws (1: TTransactionNotInProgressException e),
  void commitOrThrow(1: i64 txId, 2: i64 wp)
    throws (1: TTransactionNotInProgressException e, 2: TTransactionConflictException c,
            3: TGenericException g),

  # Ending otherwise.
  void abortTx(1: TTransaction tx),
  bool invalidateTx(1: i64 tx),

  # Operating.
  binary getSnapshot() throws (1: TTransactionCouldNotTakeSnapshotException e),
  void resetState(),
  string status(),
  TBoolean truncateInvalidTx(1: set<i64> txns),
  TBoolean truncateInvalidTxBefore(1: i64 time) throws (1: TInvalidTruncateTimeException e),
  i32 invalidTxSize(),
  void pruneNow()
}
