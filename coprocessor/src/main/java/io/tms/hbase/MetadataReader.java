package io.tms.hbase;

import java.io.IOException;
import java.util.function.IntUnaryOperator;
import java.util.function.LongSupplier;

/**
 * Reads the records of a store. One thread uses it, again and again.
 *
 * <p>The order matters. The clock is read first: a retention that is made longer afterwards is not
 * overlooked for the time up to the clock. Notes of deleted topics come before the topics: the note
 * is written before the record goes, so who sees the note and then no record knows.
 *
 * <p>All servers of a cluster read the same few rows of one of them. So each reads what changed
 * since its last time, and everything once in a while, at times that differ between servers. What
 * changed is found by the time that it was written at, which a clock that is wrong hides. Of
 * partitions that does not matter: what their records say only ever grows, so one that was missed
 * merely drops less. Of topics it would, so rows are dropped by the clock as it was before all
 * topics were read the last time.
 */
final class MetadataReader {
  static final int READS_BETWEEN_ALL_TOPICS = 60;
  static final int READS_BETWEEN_ALL_PARTITIONS = 360;

  /** Only a read of all topics notices a deleted one; but not each deletion causes one. */
  static final int READS_BETWEEN_DELETED_TOPICS = 6;

  /**
   * So much may clocks differ of servers between which the table of records moves: four times what
   * HBase allows.
   */
  static final long OVERLAP_MS = 120_000;

  private static final int TOPICS_MAX = 500_000;
  private static final int PARTITION_WORDS_MAX = 8_000_000;
  private static final int IMAGE_BYTES_MAX = 64 << 20;

  private static final String DELETED = "metadata:deleted/";
  private static final String TOPIC = "metadata:topic/";
  private static final String PARTITION = "metadata:partition/";
  private static final String CLOCK = "metadata:clock/retention";
  private static final String DEFAULT = "metadata:retention/default";
  private static final String IMAGE = "metadata:transactions/image";
  private static final int UID_DIGITS = 8;
  private static final int PARTITION_DIGITS = 5;

  private final Warnings warnings;
  private final RetentionTime retentionTime;
  private final IntUnaryOperator random;
  private Topics topics;
  private long certainClockMs;
  private long topicsReadAtMs;
  private int readsToAllTopics;
  private int readsSinceAllTopics;
  private Partitions partitions;
  private int readsToAllPartitions;
  private TransactionImage image;
  private long readAtMs;
  private long rows;

  /**
   * @param monotonicMs a clock that only ever goes on
   * @param random a number from 0 on and below the one given
   */
  MetadataReader(Warnings warnings, LongSupplier monotonicMs, IntUnaryOperator random) {
    this.warnings = warnings;
    this.retentionTime = new RetentionTime(monotonicMs);
    this.random = random;
  }

  /** All that is to be known now. */
  Metadata read(RecordSource source, long nowMs) throws IOException {
    long clockMs = readClock(source);
    long defaultMs = readDefault(source);
    long sinceMs = Math.max(0, Math.min(readAtMs, nowMs) - OVERLAP_MS);
    readTopics(source, sinceMs, clockMs, nowMs);
    readPartitions(source, sinceMs);
    readImage(source);
    readAtMs = nowMs;
    Metadata.Clock clock = new Metadata.Clock(clockMs, certainClockMs, topicsReadAtMs);
    return new Metadata(nowMs, clock, defaultMs, topics, partitions, image);
  }

  /** How many rows it was given since this was asked the last time. */
  long rowsRead() {
    long read = rows;
    rows = 0;
    return read;
  }

  private byte[] get(RecordSource source, String row) throws IOException {
    rows++;
    return source.get(row);
  }

  private long readClock(RecordSource source) throws IOException {
    byte[] clock = get(source, CLOCK);
    return clock == null ? Metadata.NO_CLOCK : retentionTime.after(Records.clock(clock));
  }

  private long readDefault(RecordSource source) throws IOException {
    byte[] text = get(source, DEFAULT);
    return text == null ? Topics.FOREVER : Records.defaultRetention(text);
  }

  private void readTopics(RecordSource source, long sinceMs, long clockMs, long nowMs)
      throws IOException {
    readsSinceAllTopics++;
    if (topics != null && readsToAllTopics > 0) {
      Topics changed = scanTopics(source, sinceMs);
      boolean deleted =
          topics.areDeleted(changed) && readsSinceAllTopics >= READS_BETWEEN_DELETED_TOPICS;
      if (changed.isWhole() && !deleted) {
        topics = topics.with(changed);
        readsToAllTopics--;
        return;
      }
    }
    Topics all = scanTopics(source, 0);
    if (!all.isWhole()) {
      warnings.warn("tms_topic_record_unreadable, rows of unknown topics stay: of", TOPIC, null);
    }
    readsToAllTopics = next(topics == null, READS_BETWEEN_ALL_TOPICS);
    readsSinceAllTopics = 0;
    topics = all;
    certainClockMs = clockMs;
    topicsReadAtMs = nowMs;
  }

  /** Servers that were started together do not go on together. */
  private int next(boolean first, int most) {
    return first ? random.applyAsInt(most) : most;
  }

  private Topics scanTopics(RecordSource source, long sinceMs) throws IOException {
    Topics.Builder found = new Topics.Builder();
    source.scan(
        DELETED,
        sinceMs,
        (row, value) -> {
          rows++;
          long uid = hexAt(row, DELETED.length(), row.length());
          if (uid >= 0) {
            found.addDeleted(uid);
          }
          check(found.size(), TOPICS_MAX, "topics");
        });
    source.scan(
        TOPIC,
        sinceMs,
        (row, value) -> {
          rows++;
          Records.topic(value, found);
          check(found.size(), TOPICS_MAX, "topics");
        });
    return found.build();
  }

  private void readPartitions(RecordSource source, long sinceMs) throws IOException {
    boolean all = partitions == null || readsToAllPartitions <= 0;
    Partitions.Builder found = new Partitions.Builder();
    source.scan(
        PARTITION,
        all ? 0 : sinceMs,
        (row, value) -> {
          rows++;
          long place = placeOf(row);
          if (place >= 0) {
            Records.partition(place, value, found);
          }
          check(found.size(), PARTITION_WORDS_MAX, "partitions");
        });
    readsToAllPartitions =
        all ? next(partitions == null, READS_BETWEEN_ALL_PARTITIONS) : readsToAllPartitions - 1;
    partitions = all ? found.build() : partitions.with(found.build());
    check(partitions.words(), PARTITION_WORDS_MAX, "partitions");
  }

  private void readImage(RecordSource source) throws IOException {
    byte[] raw = get(source, IMAGE);
    if (raw == null) {
      image = null;
      return;
    }
    check(raw.length, IMAGE_BYTES_MAX, "transactions");
    try {
      image = TransactionImage.decode(raw);
    } catch (Malformed e) { // an older one only delays
      warnings.warn("tms_transaction_image_unreadable, an older one is used: of", IMAGE, e);
    }
  }

  private static void check(int size, int most, String what) throws Malformed {
    if (size > most) {
      throw new Malformed("there are more " + what + " than a region server keeps in memory");
    }
  }

  private static long placeOf(String row) {
    int slash = PARTITION.length() + UID_DIGITS;
    if (row.length() != slash + 1 + PARTITION_DIGITS || row.charAt(slash) != '/') {
      return -1;
    }
    long uid = hexAt(row, PARTITION.length(), slash);
    long partition = 0;
    for (int i = slash + 1; i < row.length(); i++) {
      int digit = row.charAt(i) - '0';
      if (digit < 0 || digit > 9) {
        return -1;
      }
      partition = partition * 10 + digit;
    }
    return uid < 0 || partition > Records.PARTITION_MAX ? -1 : uid << 16 | partition;
  }

  private static long hexAt(String row, int from, int to) {
    if (to - from != UID_DIGITS) {
      return -1;
    }
    long number = 0;
    for (int i = from; i < to; i++) {
      int digit = "0123456789abcdef".indexOf(row.charAt(i));
      if (digit < 0) {
        return -1;
      }
      number = number << 4 | digit;
    }
    return number;
  }
}
