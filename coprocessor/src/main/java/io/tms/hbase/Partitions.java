package io.tms.hbase;

import java.util.Arrays;

/**
 * Floors and segments of all partitions. Immutable.
 *
 * <p>A partition's record is a run in one array of numbers, 24 bytes for a segment; an empty run is
 * a record that could not be parsed.
 *
 * <pre>
 *   floor: time, sequence
 *   each segment, by number: number, last time, last sequence (-1: not sealed, or nothing in it)
 * </pre>
 */
final class Partitions {
  static final Partitions EMPTY = new Partitions(new long[0], new int[1], new long[0]);
  static final int NOT_SEALED = -1;

  private static final int FLOOR_WORDS = 2;
  private static final int SEGMENT_WORDS = 3;

  private final long[] places; // uid << 16 | partition, ascending
  private final int[] starts; // where the run of each place begins, and the end of the last one
  private final long[] words;

  Partitions(long[] places, int[] starts, long[] words) {
    this.places = places;
    this.starts = starts;
    this.words = words;
  }

  /** The index of a partition; negative if it has no record. */
  int find(long place) {
    return Arrays.binarySearch(places, place);
  }

  boolean isUnsure(int at) {
    return starts[at] == starts[at + 1];
  }

  boolean isBelowFloor(int at, long timeMs, int sequence) {
    int run = starts[at];
    return isLess(timeMs, sequence, words[run], words[run + 1]);
  }

  /**
   * True if no reader ever gets to this key: behind the segment's end, or in a segment that is no
   * part of the partition although a later one is.
   */
  boolean isSealed(int at, long segment, long timeMs, int sequence) {
    int word = wordOf(at, segment);
    return word < 0
        ? isPassed(at, segment)
        : words[word + 2] != NOT_SEALED
            && isLess(words[word + 1], words[word + 2], timeMs, sequence);
  }

  /**
   * True if this segment is no longer written to, and its end is known. An open segment must stay
   * complete: its owner takes the first gap for the end.
   */
  boolean isSettled(int at, long segment) {
    int word = wordOf(at, segment);
    return word < 0 ? isPassed(at, segment) : words[word + 2] != NOT_SEALED;
  }

  private boolean isPassed(int at, long segment) {
    int last = starts[at + 1] - SEGMENT_WORDS;
    return last >= starts[at] + FLOOR_WORDS && segment < words[last];
  }

  /** The index of a segment in the record; negative if it is not there. */
  private int wordOf(int at, long segment) {
    int first = starts[at] + FLOOR_WORDS;
    int low = 0;
    int high = (starts[at + 1] - first) / SEGMENT_WORDS - 1;
    while (low <= high) {
      int middle = (low + high) >>> 1;
      int word = first + middle * SEGMENT_WORDS;
      if (words[word] < segment) {
        low = middle + 1;
      } else if (words[word] > segment) {
        high = middle - 1;
      } else {
        return word;
      }
    }
    return -1;
  }

  int size() {
    return places.length;
  }

  /** How many numbers are kept. */
  int words() {
    return words.length;
  }

  /** These records, replaced by those of {@code newer} where it has one. */
  Partitions with(Partitions newer) {
    if (newer.size() == 0) {
      return this;
    }
    Builder all = new Builder();
    int old = 0;
    for (int i = 0; i < newer.places.length; i++) {
      for (; old < places.length && places[old] < newer.places[i]; old++) {
        all.copy(this, old);
      }
      if (old < places.length && places[old] == newer.places[i]) {
        old++;
      }
      all.copy(newer, i);
    }
    for (; old < places.length; old++) {
      all.copy(this, old);
    }
    return all.build();
  }

  private static boolean isLess(long timeMs, long sequence, long thanTimeMs, long thanSequence) {
    return timeMs < thanTimeMs || (timeMs == thanTimeMs && sequence < thanSequence);
  }

  /** Collects records in ascending order. */
  static final class Builder {
    private final Longs places = new Longs();
    private final Longs starts = new Longs();
    private final Longs words = new Longs();

    /** Begins a partition's record; without any more it is one that could not be parsed. */
    void begin(long place) throws Malformed {
      if (places.size() > 0 && places.last() >= place) {
        throw new Malformed("records of partitions are not in order");
      }
      places.add(place);
      starts.add(words.size());
    }

    void floor(long timeMs, long sequence) {
      words.add(timeMs);
      words.add(sequence);
    }

    void segment(long number, long lastTimeMs, long lastSequence) {
      words.add(number);
      words.add(lastTimeMs);
      words.add(lastSequence);
    }

    private void copy(Partitions from, int at) {
      places.add(from.places[at]);
      starts.add(words.size());
      words.addAll(from.words, from.starts[at], from.starts[at + 1]);
    }

    int size() {
      return words.size();
    }

    Partitions build() {
      int[] ends = new int[places.size() + 1];
      long[] found = starts.toArray();
      for (int i = 0; i < found.length; i++) {
        ends[i] = (int) found[i];
      }
      ends[found.length] = words.size();
      return new Partitions(places.toArray(), ends, words.toArray());
    }
  }
}
