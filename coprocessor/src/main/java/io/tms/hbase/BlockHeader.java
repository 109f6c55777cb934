package io.tms.hbase;

import java.nio.ByteBuffer;
import org.apache.hadoop.hbase.ByteBufferExtendedCell;
import org.apache.hadoop.hbase.Cell;
import org.apache.hadoop.hbase.util.Bytes;

/**
 * Reads what the decisions need of a block's header. One instance reads many, one after the other,
 * without allocating and without touching the body; it is not thread-safe.
 *
 * <pre>
 *   0   4  magic "TMSB"
 *   4   1  format version, 1
 *   5   1  flags: 1 transactional, 2 staged, 4 rolled back, 8 sparse, 16 issued by TMS
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
  private static final int VERSION = 1;
  private static final int MESSAGES_MAX = 65_536;

  private final byte[] copy = new byte[BYTES];
  private int flags;
  private long pointer;
  private boolean newer;

  /** Reads the value of a cell; false when it is no block of ours. */
  boolean read(Cell cell) {
    newer = false;
    int length = cell.getValueLength();
    if (length < BYTES) {
      return false;
    }
    if (cell instanceof ByteBufferExtendedCell) { // its getValueArray() would copy the block
      ByteBufferExtendedCell buffered = (ByteBufferExtendedCell) cell;
      ByteBuffer value = buffered.getValueByteBuffer();
      int at = buffered.getValuePosition();
      for (int i = 0; i < BYTES; i++) {
        copy[i] = value.get(at + i);
      }
      return read(copy, 0);
    }
    return read(cell.getValueArray(), cell.getValueOffset());
  }

  private boolean read(byte[] block, int at) {
    if (Bytes.toInt(block, at) != MAGIC) {
      return false;
    }
    if (block[at + 4] != VERSION) {
      newer = true;
      return false;
    }
    int messages = Bytes.toInt(block, at + 8);
    flags = block[at + 5];
    pointer = Bytes.toLong(block, at + 24);
    return (block[at + 6] | block[at + 7]) == 0
        && messages > 0
        && messages <= MESSAGES_MAX
        && pointer >= 0
        && Bytes.toInt(block, at + 44) == 0;
  }

  /** Whether what was just refused is a block of a format that only another version knows. */
  boolean isOfAnotherVersion() {
    return newer;
  }

  long pointer() {
    return pointer;
  }

  boolean isTransactional() {
    return (flags & TRANSACTIONAL) != 0;
  }

  /** Whether its transaction took it back. */
  boolean isRolledBack() {
    return isTransactional() && (flags & ROLLED_BACK) != 0;
  }

  /** Whether it is of a transaction that TMS itself began, so that its image knows the fate. */
  boolean isIssued() {
    return isTransactional() && (flags & ISSUED) != 0;
  }
}
