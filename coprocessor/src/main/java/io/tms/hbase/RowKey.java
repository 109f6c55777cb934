package io.tms.hbase;

import java.nio.ByteBuffer;
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
  private static final long EACH = 0x0101010101010101L; // a one in each byte
  private static final long EACH_TOP = 0x8080808080808080L;
  private static final int[] CRC_32C = crcTable();

  private final boolean payloads;
  private final byte[] copy = new byte[PAYLOAD_CHARS];
  private final ByteBuffer characters = ByteBuffer.wrap(copy);

  private long checkedPlace = -1; // its salt was right
  private int checkedSalt;
  private long valid; // the top bit of each byte: none was no digit

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
    if (cell.getRowLength() != chars()) {
      return false;
    }
    CellUtil.copyRowTo(cell, copy, 0); // allocates nothing, wherever the cell is
    return read();
  }

  /** Reads a row; false when it is no key of this table. */
  boolean read(byte[] row, int offset, int length) {
    if (length != chars()) {
      return false;
    }
    System.arraycopy(row, offset, copy, 0, length);
    return read();
  }

  private int chars() {
    return payloads ? PAYLOAD_CHARS : MESSAGE_CHARS;
  }

  private boolean read() {
    valid = -1;
    long first = eight(0);
    place = (first & 0xFFFF) << 32 | eight(8);
    long middle = eight(16);
    long number = eight(24) << 32 | eight(32);
    if (payloads) {
      pointer = number;
      timeMs = eight(40) << 32 | eight(48);
      sequence = (int) eight(52) & 0xFFFF;
      if (pointer < 0 || middle != pointer / POINTERS_PER_DAY) {
        return false;
      }
    } else {
      segment = middle;
      timeMs = number;
      sequence = (int) eight(36) & 0xFFFF;
      if (segment > SEGMENT_MAX) {
        return false;
      }
    }
    return (valid & EACH_TOP) == EACH_TOP && timeMs >= 0 && isSalt((int) (first >>> 16));
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

  /**
   * The number in eight digits, all of them at once. A byte from 00 to 7F is at least n just when
   * its top bit is set after 80 - n was added; so each byte of {@code digits} and {@code letters}
   * has its top bit when it is one. Letters have bit 6, digits do not.
   */
  private long eight(int offset) {
    long text = characters.getLong(offset);
    long digits = (text + EACH * 0x50) & ~(text + EACH * 0x46); // 30 to 39
    long letters = (text + EACH * 0x1F) & ~(text + EACH * 0x19); // 61 to 66
    valid &= (digits | letters) & ~text;
    long number = (text & EACH * 0x0F) + (text >>> 6 & EACH) * 9;
    number = (number | number >>> 4) & 0x00FF00FF00FF00FFL;
    number = (number | number >>> 8) & 0x0000FFFF0000FFFFL;
    return (number | number >>> 16) & 0xFFFF_FFFFL;
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
