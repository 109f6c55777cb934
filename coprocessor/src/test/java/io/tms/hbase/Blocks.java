package io.tms.hbase;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import org.apache.hadoop.hbase.client.Put;
import org.apache.hadoop.hbase.util.Bytes;

/** Rows of the tables as TMS writes them. */
final class Blocks {
  static final int PLAIN = 0;
  static final int FOREIGN = 1;
  static final int MINE = 1 | 16;
  static final int STAGED = 2;
  static final int BACK = 4;
  static final long POINTERS_PER_MS = 1_000_000;
  static final long NOW = 1_700_000_000_000L;
  static final long HOUR = 3_600_000;
  static final long DAY = 24 * HOUR;

  private Blocks() {}

  static String message(long uid, int partition, int segment, long timeMs, int sequence) {
    long place = uid << 16 | partition;
    return String.format(
        "%04x%012x%08x%016x%04x", RowKey.saltOf(place), place, segment, timeMs, sequence);
  }

  static String payload(long uid, int partition, long pointer, long timeMs, int sequence) {
    long place = uid << 16 | partition;
    long day = pointer / (86_400_000L * POINTERS_PER_MS);
    return String.format(
        "%04x%012x%08x%016x%016x%04x", RowKey.saltOf(place), place, day, pointer, timeMs, sequence);
  }

  static byte[] block(int flags, long pointer, int bytes) {
    return ByteBuffer.allocate(Math.max(bytes, BlockHeader.BYTES))
        .put("TMSB".getBytes(StandardCharsets.US_ASCII))
        .put((byte) 1)
        .put((byte) flags)
        .putShort((short) 0)
        .putInt(1)
        .putInt(0)
        .putLong(0)
        .putLong(pointer)
        .array();
  }

  /** The publish time in the key of a message. */
  static long timeOf(String message) {
    return Long.parseLong(message.substring(24, 40), 16);
  }

  /** A block as it is first written. */
  static Put put(String row, long cellMs, byte[] block) {
    return new Put(Bytes.toBytes(row), cellMs)
        .addColumn(TableSettings.FAMILY, TableSettings.BLOCK, block);
  }

  static Put message(String row, int flags, long pointer) {
    return put(row, timeOf(row), block(flags, pointer, 64));
  }

  /** The same block taken back. */
  static Put takenBack(String row, int flags, long pointer) {
    return put(row, timeOf(row) + 1, block(flags | BACK, pointer, 64));
  }
}
