package io.tms.hbase;

import java.nio.BufferUnderflowException;
import java.nio.ByteBuffer;
import java.util.Arrays;

/**
 * Reads what Tephra's TransactionCodec writes: Thrift's TBinaryProtocol of a TTransaction.
 *
 * <pre>
 *   field      type 1, number 2, value         i64 8 · i32 4 · list: type of elements 1, count 4
 *   1 transaction id · 2 read pointer · 3 invalid · 4 in progress · 5 first short · 6 type
 *   7 write pointer · 8 checkpoints · 9 visibility level · end: 0
 * </pre>
 */
final class SnapshotCodec {
  private static final int I32 = 8;
  private static final int I64 = 10;
  private static final int LIST = 15;
  private static final int STOP = 0;
  private static final int FIELDS = 9;
  private static final long[] EMPTY = new long[0];

  private final long[] numbers = new long[FIELDS + 1];
  private final long[][] lists = new long[FIELDS + 1][];
  private final boolean[] found = new boolean[FIELDS + 1];

  private SnapshotCodec() {}

  /** The snapshot in these bytes. */
  static Snapshot decode(byte[] raw) throws Malformed {
    try {
      return new SnapshotCodec().read(ByteBuffer.wrap(raw));
    } catch (BufferUnderflowException e) {
      throw new Malformed("the bytes end within a field", e);
    }
  }

  private Snapshot read(ByteBuffer in) throws Malformed {
    for (int kind = in.get(); kind != STOP; kind = in.get()) {
      readField(in, kind, in.getShort() & 0xFFFF);
    }
    long transactionId = number(1, null);
    long readPointer = number(2, null);
    number(5, Long.MAX_VALUE);
    long type = number(6, (long) Snapshot.SHORT);
    long level = number(9, (long) Snapshot.LEVEL_SNAPSHOT);
    if (type < Snapshot.SHORT || type > Snapshot.LONG) {
      throw new Malformed("there is no type " + type);
    }
    if (level < Snapshot.LEVEL_SNAPSHOT || level > Snapshot.LEVEL_ALL) {
      throw new Malformed("there is no visibility level " + level);
    }
    return new Snapshot(
        transactionId,
        readPointer,
        number(7, transactionId),
        list(3),
        list(4),
        list(8),
        (int) level);
  }

  private void readField(ByteBuffer in, int kind, int number) throws Malformed {
    long value = 0;
    long[] values = null;
    switch (kind) {
      case I64:
        value = in.getLong();
        break;
      case I32:
        value = in.getInt();
        break;
      case LIST:
        values = readList(in);
        break;
      default:
        throw new Malformed("field " + number + " has the unknown type " + kind);
    }
    if (number <= FIELDS) {
      numbers[number] = value;
      lists[number] = values;
      found[number] = true;
    }
  }

  private static long[] readList(ByteBuffer in) throws Malformed {
    int kind = in.get();
    int count = in.getInt();
    if (kind != I64 || count < 0 || count > in.remaining() / Long.BYTES) {
      throw new Malformed("a list that is longer than the bytes, or not of numbers");
    }
    long[] values = new long[count];
    in.asLongBuffer().get(values);
    in.position(in.position() + count * Long.BYTES);
    for (int i = 1; i < count; i++) {
      if (values[i - 1] > values[i]) {
        Arrays.sort(values);
        break;
      }
    }
    return values;
  }

  private long number(int field, Long missing) throws Malformed {
    if (!found[field]) {
      if (missing == null) {
        throw new Malformed("field " + field + " is missing");
      }
      return missing;
    }
    if (lists[field] != null) {
      throw new Malformed("field " + field + " is a list where a number belongs");
    }
    return numbers[field];
  }

  private long[] list(int field) throws Malformed {
    if (found[field] && lists[field] == null) {
      throw new Malformed("field " + field + " is a number where a list belongs");
    }
    return found[field] ? lists[field] : EMPTY;
  }
}
