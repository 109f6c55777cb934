package io.tms.hbase;

import java.nio.BufferUnderflowException;
import java.nio.ByteBuffer;
import java.util.Arrays;

/**
 * The state of TMS's transaction manager at one moment, as Tephra's SnapshotCodecV4 writes it.
 *
 * <pre>
 *   version 4 · time (ms) · read pointer · write pointer
 *   invalid      count, pointers                                                          0
 *   in progress  count, each: pointer, expiry (ms), bound, kind, count, checkpoints, 0    0
 *   committing   count, each: id, count, changes, 0                                       0
 *   committed    the same, by commit pointer                                              0
 *   lost         count, each: first, stop                                                 0
 * </pre>
 *
 * Every number is a zig-zag variable-length integer; a change is its length and its bytes; an empty
 * list is only the 0 at its end. The last line is TMS's own: ranges of write pointers that were
 * given out and forgotten in a crash; without any it is left out.
 */
final class TransactionImage {
  private static final int VERSION = 4;

  /** When this was so, by the transaction manager's clock. */
  final long timeMs;

  /** The last write pointer that was given by then. */
  final long writePointer;

  /** The snapshot of the transactions that were committed by then. */
  final Snapshot committed;

  private final long[] lost; // firsts and stops of half-open ranges, ascending

  private TransactionImage(long timeMs, long writePointer, Snapshot committed, long[] lost) {
    this.timeMs = timeMs;
    this.writePointer = writePointer;
    this.committed = committed;
    this.lost = lost;
  }

  /** True if this transaction certainly never commits. */
  boolean neverCommits(long pointer) {
    return pointer <= writePointer
        && (committed.isInvalid(pointer) || isLost(pointer))
        && !committed.isInProgress(pointer);
  }

  private boolean isLost(long pointer) {
    // Even: at the first of a range, or, as the negative of where it belongs, within one.
    return (Arrays.binarySearch(lost, pointer) & 1) == 0;
  }

  /** The image in these bytes. */
  static TransactionImage decode(byte[] raw) throws Malformed {
    ByteBuffer in = ByteBuffer.wrap(raw);
    try {
      long version = number(in);
      if (version != VERSION) {
        throw new Malformed("the image has version " + version + ", known is " + VERSION);
      }
      long timeMs = number(in);
      long readPointer = number(in);
      long writePointer = number(in);
      Longs invalid = new Longs();
      readPointers(in, invalid);
      Longs inProgress = new Longs();
      readInProgress(in, inProgress);
      skipChanges(in);
      skipChanges(in);
      long[] lost = in.hasRemaining() ? readRanges(in) : new long[0];
      if (in.hasRemaining()) {
        throw new Malformed("the image goes on behind its end");
      }
      return new TransactionImage(
          timeMs,
          writePointer,
          Snapshot.ofNobody(readPointer, invalid.toArray(), inProgress.toArray()),
          lost);
    } catch (BufferUnderflowException e) {
      throw new Malformed("the image is cut off", e);
    }
  }

  private static long[] readRanges(ByteBuffer in) throws Malformed {
    Longs found = new Longs();
    for (int count = count(in); count != 0; count = count(in)) {
      for (int i = 0; i < 2 * count; i++) {
        long bound = number(in);
        if (found.size() > 0 && bound <= found.last()) {
          throw new Malformed("ranges of lost pointers do not ascend");
        }
        found.add(bound);
      }
    }
    return found.toArray();
  }

  private static void readPointers(ByteBuffer in, Longs to) throws Malformed {
    for (int count = count(in); count != 0; count = count(in)) {
      for (int i = 0; i < count; i++) {
        to.add(number(in));
      }
    }
  }

  private static void readInProgress(ByteBuffer in, Longs to) throws Malformed {
    for (int count = count(in); count != 0; count = count(in)) {
      for (int i = 0; i < count; i++) {
        to.add(number(in));
        number(in); // when it expires
        number(in); // its visibility bound
        number(in); // its kind
        readPointers(in, to); // checkpoints are in progress as well
      }
    }
  }

  private static void skipChanges(ByteBuffer in) throws Malformed {
    for (int count = count(in); count != 0; count = count(in)) {
      for (int i = 0; i < count; i++) {
        number(in);
        for (int changes = count(in); changes != 0; changes = count(in)) {
          for (int change = 0; change < changes; change++) {
            int length = count(in);
            in.position(in.position() + length);
          }
        }
      }
    }
  }

  private static int count(ByteBuffer in) throws Malformed {
    long count = number(in);
    if (count < 0 || count > in.remaining()) { // each takes a byte at least
      throw new Malformed("a list or change of " + count + " in " + in.remaining() + " bytes");
    }
    return (int) count;
  }

  private static long number(ByteBuffer in) throws Malformed {
    long raw = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      byte next = in.get();
      raw |= (long) (next & 0x7F) << shift;
      if (next >= 0) {
        return raw >>> 1 ^ -(raw & 1);
      }
    }
    throw new Malformed("a number of more than ten bytes");
  }
}
