package io.tms.hbase;

import java.io.ByteArrayOutputStream;

/** Writes images of transactions. */
final class Images {
  private Images() {}

  static byte[] encode(long timeMs, long readPointer, long writePointer, long... invalid) {
    return encode(timeMs, readPointer, writePointer, invalid, new long[0]);
  }

  static byte[] encode(
      long timeMs, long readPointer, long writePointer, long[] invalid, long[] inProgress) {
    ByteArrayOutputStream out = new ByteArrayOutputStream();
    for (long number : new long[] {4, timeMs, readPointer, writePointer}) {
      put(out, number);
    }
    if (invalid.length > 0) {
      put(out, invalid.length);
      for (long pointer : invalid) {
        put(out, pointer);
      }
    }
    put(out, 0);
    if (inProgress.length > 0) {
      put(out, inProgress.length);
      for (long pointer : inProgress) {
        for (long number : new long[] {pointer, 0, 0, 0, 0}) {
          put(out, number);
        }
      }
    }
    put(out, 0);
    put(out, 0);
    put(out, 0);
    return out.toByteArray();
  }

  private static void put(ByteArrayOutputStream out, long number) {
    long rest = (number << 1) ^ (number >> 63);
    for (; (rest & ~0x7FL) != 0; rest >>>= 7) {
      out.write((int) ((rest & 0x7F) | 0x80));
    }
    out.write((int) rest);
  }
}
