package io.tms.hbase;

import org.apache.hadoop.hbase.Cell;

/** What one reader sees of the messages. Not thread-safe: each scan has its own. */
abstract class View {
  /** Whether the reader gets the row with this cell {@code m:b}. */
  abstract boolean isVisible(Cell block);

  /** Everything that is committed, by the newest image, and that no rule drops. */
  static View committed(Metadata metadata, long wallMs, long ttlMs) {
    Judge judge = Judge.ofShown(metadata, wallMs, ttlMs);
    Snapshot committed = metadata.image().committed();
    return new View() {
      @Override
      boolean isVisible(Cell block) {
        Reason reason = judge.judge(block);
        if (reason.drops() || reason == Reason.DAMAGED) {
          return false;
        }
        BlockHeader header = judge.header();
        if (!header.isTransactional()) {
          return true;
        }
        return !header.isRolledBack() && header.isIssued() && committed.isVisible(header.pointer());
      }
    };
  }

  /** What a transaction may see. */
  static View of(Snapshot snapshot) {
    RowKey key = new RowKey(false);
    BlockHeader header = new BlockHeader();
    return new View() {
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
