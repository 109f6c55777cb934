package io.tms.hbase;

/** All that is known of a store at one moment. Immutable. */
final class Metadata {
  /** No time by which retention is judged was ever noted: nothing is expired. */
  static final long NO_CLOCK = -1;

  private final long readAtMs;
  private final long clockMs;
  private final Topics topics;
  private final Partitions partitions;
  private final TransactionImage image;

  /**
   * @param readAtMs when reading began, by this server's clock
   * @param image null when there is none
   */
  Metadata(
      long readAtMs, long clockMs, Topics topics, Partitions partitions, TransactionImage image) {
    this.readAtMs = readAtMs;
    this.clockMs = clockMs;
    this.topics = topics;
    this.partitions = partitions;
    this.image = image;
  }

  long readAtMs() {
    return readAtMs;
  }

  Topics topics() {
    return topics;
  }

  Partitions partitions() {
    return partitions;
  }

  TransactionImage image() {
    return image;
  }

  /**
   * The time by which retention is judged. It was read before the topics, so no topic is judged by
   * a retention that was changed before that time.
   */
  long nowMs(long wallMs) {
    return clockMs == NO_CLOCK ? Long.MIN_VALUE : Math.min(clockMs, wallMs);
  }
}
