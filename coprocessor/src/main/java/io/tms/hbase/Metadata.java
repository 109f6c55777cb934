package io.tms.hbase;

/** All that is known of a store at one moment. Immutable. */
final class Metadata {
  /** No time by which retention is judged was ever noted: nothing is expired. */
  static final long NO_CLOCK = -1;

  final long readAtMs;
  private final long clockMs;
  private final long certainClockMs;

  /** When reading all topics began, the last time that all were read, by this server's clock. */
  final long topicsReadAtMs;

  private final long defaultRetentionMs;
  final Topics topics;
  final Partitions partitions;
  final TransactionImage image;

  /**
   * @param readAtMs when reading began, by this server's clock
   * @param clock the time by which retention is judged
   * @param defaultRetentionMs by which TMS judges topics without a retention of their own
   * @param image null when there is none
   */
  Metadata(
      long readAtMs,
      Clock clock,
      long defaultRetentionMs,
      Topics topics,
      Partitions partitions,
      TransactionImage image) {
    this.readAtMs = readAtMs;
    this.clockMs = clock.nowMs;
    this.certainClockMs = clock.certainMs;
    this.topicsReadAtMs = clock.certainSinceMs;
    this.defaultRetentionMs = defaultRetentionMs;
    this.topics = topics;
    this.partitions = partitions;
    this.image = image;
  }

  /** The time by which a reader finds messages expired. */
  long nowMs(long wallMs) {
    return clockMs == NO_CLOCK ? Long.MIN_VALUE : Math.min(clockMs, wallMs);
  }

  /**
   * The time by which rows are dropped. It was read before all topics were, so no topic is judged
   * by a retention that was changed before that time.
   */
  long certainNowMs(long wallMs) {
    return certainClockMs == NO_CLOCK ? Long.MIN_VALUE : Math.min(certainClockMs, wallMs);
  }

  /**
   * How long topics without a retention of their own keep their messages: what TMS goes by or what
   * the table says, whichever is longer; for ever if TMS has not said.
   *
   * @param tableMs what the table says, negative: nothing
   */
  long defaultRetentionMs(long tableMs) {
    return Math.max(defaultRetentionMs, tableMs);
  }

  /** The time by which retention is judged: the newest, and the one that all topics are as of. */
  static final class Clock {
    private final long nowMs;
    private final long certainMs;
    private final long certainSinceMs;

    /**
     * @param certainMs as it was read before all topics were
     * @param certainSinceMs when that was, by this server's clock
     */
    Clock(long nowMs, long certainMs, long certainSinceMs) {
      this.nowMs = nowMs;
      this.certainMs = certainMs;
      this.certainSinceMs = certainSinceMs;
    }
  }
}
