package io.tms.hbase;

import java.util.Locale;

/** The outcome for a row, and its reason. The order is that in which the rules are applied. */
enum Reason {
  /** Needed, or not known to be needless. */
  KEPT(false),
  /** Something that had to be known was never read or cannot be parsed. */
  UNSURE(false),
  /** No key or block of ours. */
  DAMAGED(false),
  /** Needless, but its segment is still open: its owner must find it without gaps. */
  OPEN(false),
  /** Of a topic that was deleted. */
  DELETED(true),
  /** Older than its topic's retention. */
  EXPIRED(true),
  /** Below what its partition still shows. */
  FLOOR(true),
  /** Written by a former owner behind the end of its segment, or of a segment that is gone. */
  SEALED(true),
  /** Taken back by who wrote it. */
  ROLLED_BACK(true),
  /** Of a transaction that will never commit. */
  INVALID(true),
  /** Of no topic at all, and older than the table's {@code tms.ttl}. */
  ORPHAN(true);

  private final boolean drops;

  Reason(boolean drops) {
    this.drops = drops;
  }

  /** True if a compaction leaves the row out, and a committed reader does not see it. */
  boolean drops() {
    return drops;
  }

  /** The name as in the metrics and the test vectors. */
  String text() {
    return name().toLowerCase(Locale.ROOT);
  }
}
