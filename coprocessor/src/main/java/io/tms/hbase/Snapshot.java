package io.tms.hbase;

/**
 * The writes that one transaction may see: Apache Tephra's rules, as in {@code
 * python/tms/model/snapshot.py}. A write pointer at or below the read pointer is visible unless it
 * was in progress or invalid then; besides, a transaction sees its own.
 */
final class Snapshot {
  static final int SHORT = 1;
  static final int LONG = 2;
  static final int LEVEL_SNAPSHOT = 1;
  static final int LEVEL_EXCLUDE_CURRENT = 2;
  static final int LEVEL_ALL = 3;

  private final long transactionId;
  private final long readPointer;
  private final long writePointer;
  private final Pointers invalid;
  private final Pointers inProgress;
  private final Pointers checkpoints;
  private final int level;

  Snapshot(
      long transactionId,
      long readPointer,
      long writePointer,
      long[] invalid,
      long[] inProgress,
      long[] checkpoints,
      int level) {
    this.transactionId = transactionId;
    this.readPointer = readPointer;
    this.writePointer = writePointer;
    this.invalid = Pointers.of(invalid);
    this.inProgress = Pointers.of(inProgress);
    this.checkpoints = Pointers.of(checkpoints);
    this.level = level;
  }

  /** The snapshot of a reader without a transaction. */
  static Snapshot ofNobody(long readPointer, long[] invalid, long[] inProgress) {
    long none = Long.MIN_VALUE; // no block has it
    return new Snapshot(none, readPointer, none, invalid, inProgress, new long[0], LEVEL_SNAPSHOT);
  }

  /** True if this transaction sees the writes with that pointer. */
  boolean isVisible(long pointer) {
    if (pointer <= readPointer && !isInProgress(pointer) && !isInvalid(pointer)) {
      return true;
    }
    if (pointer == writePointer) {
      return level != LEVEL_EXCLUDE_CURRENT;
    }
    return pointer == transactionId || checkpoints.holds(pointer);
  }

  boolean isInvalid(long pointer) {
    return invalid.holds(pointer);
  }

  boolean isInProgress(long pointer) {
    return inProgress.holds(pointer);
  }
}
