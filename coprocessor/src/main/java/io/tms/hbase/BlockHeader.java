package io.tms.hbase;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import org.apache.hadoop.hbase.ByteBufferExtendedCell;
import org.apache.hadoop.hbase.Cell;

/**
 * Reads what the decisions need of a block's header. One instance reads many, one after the other,
 * without allocating and without touching the body; it is not thread-safe.
 *
 * <pre>
 *   0   4  magic "TMSB"
 *   4   1  format version, 1, or 2 with event times; decisions do not depend on it
 *   5   1  flags: 1 transactional, 2 staged, 4 rolled back, 8 sparse, 16 issued by TMS,
 *          32 the producer sequence counts messages; decisions depend on 1, 4 and 16 only
 *   6   2  zero
 *   8   4  number of messages, 1 to 65,536
 *   24  8  write pointer
 *   44  4  zero
 * </pre>
 */
final class BlockHeader {
  static final int BYTES = 48;
  static final int TRANSACTIONAL = 1;
  static final int ROLLED_BACK = 4;
  static final int ISSUED = 16;

  private static final int MAGIC = 0x544D5342;
  private static final int NEWEST_VERSION = 2;
  private static final int MESSAGES_MAX = 65_536;

  private final byte[] copy = new byte[BYTES];
  private final ByteBuffer header = ByteBuffer.wrap(copy);
  private int flags;
  private long pointer;
  private boolean newer;

  /** Reads the value of a cell; false when it is no block of ours. */
  boolean read(Cell cell) {
    newer = false;
    if (cell.getValueLength() < BYTES) {
      return false;
    }
    if (cell instanceof ByteBufferExtendedCell) { // its getValueArray() would copy the block
      ByteBufferExtendedCell buffered = (ByteBufferExtendedCell) cell;
      ByteBuffer value = buffered.getValueByteBuffer();
      int at = buffered.getValuePosition();
      header.order(value.order());
      for (int i = 0; i < BYTES; i += Long.BYTES) {
        header.putLong(i, value.getLong(at + i));
      }
      header.order(ByteOrder.BIG_ENDIAN);
    } else {
      System.arraycopy(cell.getValueArray(), cell.getValueOffset(), copy, 0, BYTES);
    }
    return read(header.getLong(0), header.getLong(8), header.getLong(24), header.getLong(40));
  }

  private boolean read(long start, long messages, long writePointer, long end) {
    if ((int) (start >>> 32) != MAGIC) {
      return false;
    }
    int version = (int) (start >>> 24) & 0xFF;
    if (version < 1 || version > NEWEST_VERSION) {
      newer = true;
      return false;
    }
    flags = (int) (start >>> 16) & 0xFF;
    pointer = writePointer;
    int count = (int) (messages >>> 32);
    return (start & 0xFFFF) == 0
        && count > 0
        && count <= MESSAGES_MAX
        && pointer >= 0
        && (int) end == 0;
  }

  /** True if the block that was just refused has a format that only another version knows. */
  boolean isOfAnotherVersion() {
    return newer;
  }

  long pointer() {
    return pointer;
  }

  boolean isTransactional() {
    return (flags & TRANSACTIONAL) != 0;
  }

  /** True if its transaction rolled it back. */
  boolean isRolledBack() {
    return isTransactional() && (flags & ROLLED_BACK) != 0;
  }

  /** True if TMS itself began its transaction, so that the image knows the outcome. */
  boolean isIssued() {
    return isTransactional() && (flags & ISSUED) != 0;
  }
}
