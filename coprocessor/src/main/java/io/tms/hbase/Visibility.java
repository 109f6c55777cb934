package io.tms.hbase;

import org.apache.hadoop.hbase.Cell;

/** Decides which messages a reader sees. Not thread-safe: each scan has its own. */
abstract class Visibility {
  /** True if the reader gets the row with this cell {@code m:b}. */
  abstract boolean isVisible(Cell block);

  /** Everything that is committed, by the newest image, and that no rule drops. */
  static Visibility committed(Metadata metadata, long wallMs, long ttlMs) {
    RowRules rules = RowRules.ofShown(metadata, wallMs, ttlMs);
    Snapshot committed = metadata.image.committed;
    return new Visibility() {
      @Override
      boolean isVisible(Cell block) {
        Reason reason = rules.reasonOf(block);
        if (reason.drops() || reason == Reason.DAMAGED) {
          return false;
        }
        BlockHeader header = rules.header();
        if (!header.isTransactional()) {
          return true;
        }
        return !header.isRolledBack() && header.isIssued() && committed.isVisible(header.pointer());
      }
    };
  }

  /** Everything that a transaction sees. */
  static Visibility of(Snapshot snapshot) {
    RowKey key = new RowKey(false);
    BlockHeader header = new BlockHeader();
    return new Visibility() {
      @Override
      boolean isVisible(Cell block) {
        if (!key.read(block) || !header.read(block)) {
          return false;
        }
        return !header.isTransactional()
            || (!header.isRolledBack() && snapshot.isVisible(header.pointer()));
      }
    };
  }
}
