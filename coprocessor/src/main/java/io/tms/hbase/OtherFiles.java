package io.tms.hbase;

import java.util.Collection;
import java.util.OptionalLong;
import org.apache.hadoop.hbase.regionserver.Store;
import org.apache.hadoop.hbase.regionserver.StoreFile;

/**
 * Which times the cells have in the files of a store that a flush or a compaction does not read. A
 * block is first written with its publish time as the cell's, and with one more when it is rolled
 * back.
 */
final class OtherFiles {
  private final long[] earliest;
  private final long[] latest;
  private final int count;

  OtherFiles(Store store, Collection<? extends StoreFile> read) {
    Collection<? extends StoreFile> all = store.getStorefiles();
    earliest = new long[all.size()];
    latest = new long[all.size()];
    int at = 0;
    for (StoreFile file : all) {
      if (!read.contains(file) && file.getFirstKey().isPresent()) {
        OptionalLong min = file.getMinimumTimestamp();
        OptionalLong max = file.getMaximumTimestamp();
        earliest[at] = min.orElse(Long.MIN_VALUE);
        latest[at] = max.orElse(Long.MAX_VALUE);
        at++;
      }
    }
    count = at;
  }

  /** True if one of the files may hold a cell with this time. */
  boolean mayHold(long timeMs) {
    for (int i = 0; i < count; i++) {
      if (earliest[i] <= timeMs && timeMs <= latest[i]) {
        return true;
      }
    }
    return false;
  }
}
