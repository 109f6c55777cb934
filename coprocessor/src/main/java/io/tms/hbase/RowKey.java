package io.tms.hbase;

import org.apache.hadoop.hbase.ByteBufferExtendedCell;
import org.apache.hadoop.hbase.Cell;
import org.apache.hadoop.hbase.CellUtil;

/**
 * Reads row keys: lower-case hexadecimal digits of a fixed width. One instance reads many keys, one
 * after the other, without allocating; it is not thread-safe.
 *
 * <pre>
 *   messages (44 characters)                 payloads (60)
 *   0   4  salt                              0   4  salt
 *   4   8  topic uid                         4   8  topic uid
 *   12  4  partition                         12  4  partition
 *   16  8  segment                           16  8  day: write pointer // 86,400,000,000,000
 *   24  16 publish time, ms                  24  16 write pointer
 *   40  4  sequence of the last message      40  16 payload time, ms
 *                                            56  4  payload sequence of the last message
 *
 *   salt = upper 16 bits of CRC-32C(uid as 4 bytes || partition as 2 bytes)
 * </pre>
 */
final class RowKey {
  static final int MESSAGE_CHARS = 44;
  static final int PAYLOAD_CHARS = 60;

  private static final long POINTERS_PER_DAY = 86_400_000L * 1_000_000L;
  private static final long SEGMENT_MAX = 99_999_999;
  private static final byte[] DIGITS = digits();
  private static final int[] CRC_32C = crcTable();

  private final boolean payloads;
  private final byte[] copy = new byte[PAYLOAD_CHARS];

  private long checkedPlace = -1; // its salt was right
  private int checkedSalt;
  private int bad; // the OR of all digits: negative when one was none

  private long place;
  private long segment;
  private long timeMs;
  private int sequence;
  private long pointer;

  RowKey(boolean payloads) {
    this.payloads = payloads;
  }

  /** Reads the row of a cell; false when it is no key of this table. */
  boolean read(Cell cell) {
    int length = cell.getRowLength();
    if (length != (payloads ? PAYLOAD_CHARS : MESSAGE_CHARS)) {
      return false;
    }
    if (cell instanceof ByteBufferExtendedCell) { // its getRowArray() would allocate
      CellUtil.copyRowTo(cell, copy, 0);
      return read(copy, 0, length);
    }
    return read(cell.getRowArray(), cell.getRowOffset(), length);
  }

  /** Reads a row; false when it is no key of this table. */
  boolean read(byte[] row, int offset, int length) {
    if (length != (payloads ? PAYLOAD_CHARS : MESSAGE_CHARS)) {
      return false;
    }
    bad = 0;
    int salt = (int) number(row, offset, 4);
    place = number(row, offset + 4, 12);
    long middle = number(row, offset + 16, 8);
    long first = number(row, offset + 24, 16);
    if (payloads) {
      pointer = first;
      timeMs = number(row, offset + 40, 16);
      sequence = (int) number(row, offset + 56, 4);
      return bad >= 0
          && pointer >= 0
          && timeMs >= 0
          && middle == pointer / POINTERS_PER_DAY
          && isSalt(salt);
    }
    segment = middle;
    timeMs = first;
    sequence = (int) number(row, offset + 40, 4);
    return bad >= 0 && timeMs >= 0 && segment <= SEGMENT_MAX && isSalt(salt);
  }

  /** Topic uid and partition in one number: {@code uid << 16 | partition}. */
  long place() {
    return place;
  }

  /** The topic's uid. */
  long uid() {
    return place >>> 16;
  }

  /** The number of the segment; of messages only. */
  long segment() {
    return segment;
  }

  /** Publish time, or payload time. */
  long timeMs() {
    return timeMs;
  }

  /** Sequence of the block's last message. */
  int sequence() {
    return sequence;
  }

  /** The write pointer in the key; of payloads only. */
  long pointer() {
    return pointer;
  }

  private boolean isSalt(int salt) {
    if (place != checkedPlace) {
      checkedSalt = saltOf(place);
      checkedPlace = place;
    }
    return salt == checkedSalt;
  }

  /** The salt of all rows of a partition. */
  static int saltOf(long place) {
    int crc = ~0;
    for (int shift = 40; shift >= 0; shift -= 8) {
      crc = crc >>> 8 ^ CRC_32C[(crc ^ (int) (place >>> shift)) & 0xFF];
    }
    return ~crc >>> 16;
  }

  private long number(byte[] row, int offset, int digits) {
    long number = 0;
    for (int i = offset; i < offset + digits; i++) {
      int digit = DIGITS[row[i] & 0xFF];
      bad |= digit;
      number = number << 4 | (digit & 0xF);
    }
    return number;
  }

  private static byte[] digits() {
    byte[] found = new byte[256];
    java.util.Arrays.fill(found, (byte) -1);
    for (int i = 0; i < 16; i++) {
      found["0123456789abcdef".charAt(i)] = (byte) i;
    }
    return found;
  }

  private static int[] crcTable() { // java.util.zip has no CRC-32C in Java 8
    int[] table = new int[256];
    for (int i = 0; i < 256; i++) {
      int crc = i;
      for (int bit = 0; bit < 8; bit++) {
        crc = (crc & 1) == 0 ? crc >>> 1 : crc >>> 1 ^ 0x82F63B78;
      }
      table[i] = crc;
    }
    return table;
  }
}
