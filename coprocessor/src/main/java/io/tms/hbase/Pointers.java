package io.tms.hbase;

import java.util.Arrays;

/**
 * A set of write pointers that is asked for every row. Immutable.
 *
 * <p>A hundred thousand of them are 17 steps of a binary search, most of which miss the caches and
 * the branch predictor. Write pointers are times, so they spread over their range: a table of where
 * each equal part of the range begins leaves about one to compare. However they are spread, it is
 * never more than the binary search.
 */
final class Pointers {
  private static final Pointers NONE = new Pointers(new long[0]);
  private static final int PARTS_MAX = 1 << 20;
  private static final int WHOLE = -1;

  private final long[] ascending;
  private final int[] starts; // of each part, and the end of the last one
  private final int shift; // a part has 2^shift numbers

  private Pointers(long[] ascending) {
    this.ascending = ascending;
    int count = ascending.length;
    long range = count == 0 ? 0 : ascending[count - 1] - ascending[0];
    int found = 0;
    if (range >= 0) {
      while (range >>> found >= Math.min(PARTS_MAX, count) && found < Long.SIZE - 1) {
        found++;
      }
    } else { // beyond 2^63: one part
      found = WHOLE;
    }
    shift = found;
    starts = new int[shift == WHOLE ? 0 : (int) (range >>> shift) + 2];
    int at = 0;
    for (int part = 0; part < starts.length; part++) {
      while (at < count && (ascending[at] - ascending[0]) >>> shift < part) {
        at++;
      }
      starts[part] = at;
    }
  }

  /** The set of these; the array is used as it is, and sorted if it is not. */
  static Pointers of(long[] pointers) {
    if (pointers.length == 0) {
      return NONE;
    }
    for (int i = 1; i < pointers.length; i++) {
      if (pointers[i - 1] > pointers[i]) {
        Arrays.sort(pointers);
        break;
      }
    }
    return new Pointers(pointers);
  }

  boolean holds(long pointer) {
    int count = ascending.length;
    if (count == 0 || pointer < ascending[0] || pointer > ascending[count - 1]) {
      return false;
    }
    int low = 0;
    int high = count;
    if (shift != WHOLE) {
      int part = (int) ((pointer - ascending[0]) >>> shift);
      low = starts[part];
      high = starts[part + 1];
    }
    return Arrays.binarySearch(ascending, low, high, pointer) >= 0;
  }
}
