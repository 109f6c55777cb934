package io.tms.hbase;

import java.util.Arrays;

/** A growing list of numbers, without boxes. */
final class Longs {
  private long[] values = new long[16];
  private int size;

  void add(long value) {
    if (size == values.length) {
      values = Arrays.copyOf(values, size * 2);
    }
    values[size++] = value;
  }

  void addAll(long[] from, int start, int stop) {
    for (int i = start; i < stop; i++) {
      add(from[i]);
    }
  }

  int size() {
    return size;
  }

  long last() {
    return values[size - 1];
  }

  long[] toArray() {
    return Arrays.copyOf(values, size);
  }
}
