package io.tms.hbase;

import org.apache.hadoop.hbase.Cell;

/**
 * The rules that keep or drop rows, with the metadata of the moment at which they were made. Each
 * scan has its own; not thread-safe, allocates nothing per row. Facts about a topic and its
 * partition are looked up once for the rows that follow.
 *
 * <p>A row goes only when something positively says so; whatever is missing or unclear keeps it.
 */
final class RowRules {
  private static final long POINTERS_PER_MS = 1_000_000;

  /** The longest duration of a transaction, 25 h, and an hour for clocks that differ. */
  private static final long TRANSACTION_MS_MAX = 26 * 3_600_000L;

  private static final long NEVER = Long.MIN_VALUE;

  private final Metadata metadata;
  private final boolean payloads;
  private final long nowMs;
  private final long orphansBeforeMs;
  private final long defaultRetentionMs;
  private final RowKey key;
  private final BlockHeader header = new BlockHeader();

  // Of the partition that the last row was of.
  private long place = -1;
  private boolean unsure;
  private boolean deleted;
  private boolean unknown;
  private long expiredBeforeMs;
  private int partition;

  private RowRules(
      Metadata metadata,
      boolean payloads,
      long nowMs,
      long orphansBeforeMs,
      long defaultRetentionMs) {
    this.metadata = metadata;
    this.payloads = payloads;
    this.key = new RowKey(payloads);
    this.nowMs = nowMs;
    this.orphansBeforeMs = orphansBeforeMs;
    this.defaultRetentionMs = defaultRetentionMs;
  }

  /**
   * Decides what a flush or compaction leaves out.
   *
   * @param metadata null when it was never read: then everything stays
   * @param ttlMs the table's: what rows of no topic, and topics without a retention of their own,
   *     are kept for; negative: none
   */
  static RowRules ofStored(Metadata metadata, boolean payloads, long wallMs, long ttlMs) {
    if (metadata == null) {
      return new RowRules(null, payloads, NEVER, NEVER, Topics.FOREVER);
    }
    long nowMs = metadata.certainNowMs(wallMs);
    // A topic that was created after all of them were read is no orphan.
    long orphansBeforeMs =
        nowMs == NEVER || ttlMs < 0 ? NEVER : Math.min(nowMs, metadata.topicsReadAtMs) - ttlMs;
    long defaultMs = metadata.defaultRetentionMs(ttlMs);
    return new RowRules(metadata, payloads, nowMs, orphansBeforeMs, defaultMs);
  }

  /** Decides what readers of the messages do not get, of topics that are known. */
  static RowRules ofShown(Metadata metadata, long wallMs, long ttlMs) {
    long defaultMs = metadata.defaultRetentionMs(ttlMs);
    return new RowRules(metadata, false, metadata.nowMs(wallMs), NEVER, defaultMs);
  }

  /**
   * True if a flush or compaction may leave out the last row for this reason: readers do not miss
   * it, but the owner of an open segment would.
   */
  boolean mayDrop(Reason reason) {
    return reason.drops()
        && (payloads
            || reason == Reason.DELETED
            || reason == Reason.ORPHAN
            || (partition >= 0 && metadata.partitions.isSettled(partition, key.segment())));
  }

  /** The reason to drop or keep the row with this cell {@code m:b}. */
  Reason reasonOf(Cell block) {
    if (!key.read(block) || !header.read(block)) {
      return Reason.DAMAGED;
    }
    if (payloads && header.pointer() != key.pointer()) {
      return Reason.DAMAGED;
    }
    if (metadata == null) {
      return Reason.UNSURE;
    }
    if (key.place() != place) {
      lookUp();
    }
    return unsure ? Reason.UNSURE : decide();
  }

  /** The key of the last row; meaningless if that was damaged. */
  RowKey key() {
    return key;
  }

  /** The header of the last row; meaningless if that was damaged. */
  BlockHeader header() {
    return header;
  }

  private Reason decide() {
    if (deleted) {
      return Reason.DELETED;
    }
    long age = payloads ? key.pointer() / POINTERS_PER_MS + TRANSACTION_MS_MAX : key.timeMs();
    if (age < expiredBeforeMs) {
      return Reason.EXPIRED;
    }
    if (!payloads) {
      if (partition >= 0) {
        Partitions partitions = metadata.partitions;
        if (partitions.isBelowFloor(partition, key.timeMs(), key.sequence())) {
          return Reason.FLOOR;
        }
        if (partitions.isSealed(partition, key.segment(), key.timeMs(), key.sequence())) {
          return Reason.SEALED;
        }
      }
      if (header.isRolledBack()) {
        return Reason.ROLLED_BACK;
      }
    }
    TransactionImage image = metadata.image;
    if (header.isIssued() && image != null && image.neverCommits(header.pointer())) {
      return Reason.INVALID;
    }
    return unknown && age < orphansBeforeMs ? Reason.ORPHAN : Reason.KEPT;
  }

  private void lookUp() {
    place = -1; // should this fail half way, the next row begins anew
    Topics topics = metadata.topics;
    long retentionMs = topics.retentionMs(key.uid());
    if (retentionMs == Topics.DEFAULT) {
      retentionMs = defaultRetentionMs;
    }
    partition = metadata.partitions.find(key.place());
    unsure =
        retentionMs == Topics.UNSURE || (partition >= 0 && metadata.partitions.isUnsure(partition));
    boolean live = retentionMs != Topics.NONE;
    boolean noted = topics.isNotedDeleted(key.uid());
    deleted = !live && noted;
    unknown = !live && !noted;
    expiredBeforeMs =
        live && !unsure && retentionMs != Topics.FOREVER && nowMs != NEVER
            ? nowMs - retentionMs
            : NEVER;
    place = key.place();
  }
}
