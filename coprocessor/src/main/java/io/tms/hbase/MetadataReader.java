package io.tms.hbase;

import java.io.IOException;

/**
 * Reads the records of a store. One thread uses it, again and again.
 *
 * <p>The order matters. The clock is read first: a retention that is made longer afterwards is not
 * overlooked for the time up to the clock. Notes of deleted topics come before the topics: the note
 * is written before the record goes, so who sees the note and then no record knows.
 *
 * <p>Topics are read whole each time. Of the partitions, of which there are many more, only those
 * that changed are: what their records say only ever grows, so one that was missed merely drops
 * less; once in a while all are read.
 */
final class MetadataReader {
  private static final int TOPICS_MAX = 500_000;
  private static final int PARTITION_WORDS_MAX = 8_000_000;
  private static final int IMAGE_BYTES_MAX = 64 << 20;

  /** So much may the clocks of servers differ between which the table of records moves. */
  private static final long OVERLAP_MS = 600_000;

  private static final int READS_BETWEEN_WHOLE_ONES = 60;

  private static final String DELETED = "metadata:deleted/";
  private static final String TOPIC = "metadata:topic/";
  private static final String PARTITION = "metadata:partition/";
  private static final String CLOCK = "metadata:clock/retention";
  private static final String IMAGE = "metadata:transactions/image";
  private static final int UID_DIGITS = 8;
  private static final int PARTITION_DIGITS = 5;

  private final Warnings warnings;
  private Partitions partitions;
  private TransactionImage image;
  private long newestMs;
  private int reads;

  MetadataReader(Warnings warnings) {
    this.warnings = warnings;
  }

  /** All that is to be known now. */
  Metadata read(RecordSource source, long nowMs) throws IOException {
    long clockMs = readClock(source);
    Topics topics = readTopics(source);
    readPartitions(source);
    readImage(source);
    return new Metadata(nowMs, clockMs, topics, partitions, image);
  }

  private static long readClock(RecordSource source) throws IOException {
    byte[] clock = source.get(CLOCK);
    return clock == null ? Metadata.NO_CLOCK : Records.clock(clock);
  }

  private Topics readTopics(RecordSource source) throws IOException {
    Topics.Builder topics = new Topics.Builder();
    source.scan(
        DELETED,
        0,
        (row, value, writtenMs) -> {
          long uid = hexAt(row, DELETED.length(), row.length());
          if (uid >= 0) {
            topics.addDeleted(uid);
          }
          check(topics.size(), TOPICS_MAX, "topics");
        });
    source.scan(
        TOPIC,
        0,
        (row, value, writtenMs) -> {
          Records.topic(value, topics);
          check(topics.size(), TOPICS_MAX, "topics");
        });
    Topics built = topics.build();
    if (!built.isWhole()) {
      warnings.warn("tms_topic_record_unreadable, rows of unknown topics stay: of", TOPIC, null);
    }
    return built;
  }

  private void readPartitions(RecordSource source) throws IOException {
    boolean whole = partitions == null || reads >= READS_BETWEEN_WHOLE_ONES;
    long sinceMs = whole ? 0 : Math.max(0, newestMs - OVERLAP_MS);
    long[] newest = {whole ? 0 : newestMs};
    Partitions.Builder found = new Partitions.Builder();
    source.scan(
        PARTITION,
        sinceMs,
        (row, value, writtenMs) -> {
          long place = placeOf(row);
          if (place >= 0) {
            Records.partition(place, value, found);
          }
          newest[0] = Math.max(newest[0], writtenMs);
          check(found.size(), PARTITION_WORDS_MAX, "partitions");
        });
    partitions = whole ? found.build() : partitions.with(found.build());
    check(partitions.words(), PARTITION_WORDS_MAX, "partitions");
    newestMs = newest[0];
    reads = whole ? 1 : reads + 1;
  }

  private void readImage(RecordSource source) throws IOException {
    byte[] raw = source.get(IMAGE);
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
