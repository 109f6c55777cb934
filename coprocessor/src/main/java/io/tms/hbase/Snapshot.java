package io.tms.hbase;

import java.util.Arrays;

/**
 * What one transaction may see: Apache Tephra's rules, the same as in {@code
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
  private final long[] invalid; // all three ascend
  private final long[] inProgress;
  private final long[] checkpoints;
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
    this.invalid = invalid;
    this.inProgress = inProgress;
    this.checkpoints = checkpoints;
    this.level = level;
  }

  /** What everybody sees who is in no transaction. */
  static Snapshot ofNobody(long readPointer, long[] invalid, long[] inProgress) {
    long none = Long.MIN_VALUE; // no block has it
    return new Snapshot(none, readPointer, none, invalid, inProgress, new long[0], LEVEL_SNAPSHOT);
  }

  /** Whether this transaction sees what that one wrote. */
  boolean isVisible(long pointer) {
    if (pointer <= readPointer && !isInProgress(pointer) && !isInvalid(pointer)) {
      return true;
    }
    if (pointer == writePointer) {
      return level != LEVEL_EXCLUDE_CURRENT;
    }
    return pointer == transactionId || holds(checkpoints, pointer);
  }

  boolean isInvalid(long pointer) {
    return holds(invalid, pointer);
  }

  boolean isInProgress(long pointer) {
    return holds(inProgress, pointer);
  }

  private static boolean holds(long[] ascending, long pointer) {
    return ascending.length > 0
        && pointer >= ascending[0]
        && pointer <= ascending[ascending.length - 1]
        && Arrays.binarySearch(ascending, pointer) >= 0;
  }
}
