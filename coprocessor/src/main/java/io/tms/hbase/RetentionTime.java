package io.tms.hbase;

import java.util.function.LongSupplier;

/**
 * The time by which messages expire, also while no service notes it.
 *
 * <p>A service notes it every half minute, and while it does this is that time. When the note is
 * older, the time that has really passed since it was first seen here goes on from it: an hour
 * behind, so that a service whose clock is behind shows nothing that is gone; and for seven days,
 * which is as far as a service goes on by itself when it starts again. Then it stands still until a
 * service notes another time. It is never ahead of the server's clock, which the callers see to.
 */
final class RetentionTime {
  static final long BEHIND_MS = 3_600_000;
  static final long ABSENCE_MS_MAX = 7 * 86_400_000L;

  private final LongSupplier monotonicMs;
  private long notedMs = Metadata.NO_CLOCK;
  private long seenAtMs;

  RetentionTime(LongSupplier monotonicMs) {
    this.monotonicMs = monotonicMs;
  }

  /** The time to go by when this one is noted now. */
  long after(long nowNotedMs) {
    long atMs = monotonicMs.getAsLong();
    if (nowNotedMs != notedMs) {
      notedMs = nowNotedMs;
      seenAtMs = atMs;
    }
    long passedMs = Math.min(atMs - seenAtMs, ABSENCE_MS_MAX);
    return notedMs + Math.max(0, passedMs - BEHIND_MS);
  }
}
