package io.tms.hbase;

import java.io.IOException;
import org.apache.hadoop.hbase.client.CheckAndMutate;
import org.apache.hadoop.hbase.client.OperationWithAttributes;
import org.apache.hadoop.hbase.client.Row;
import org.apache.hadoop.hbase.regionserver.FlushLifeCycleTracker;
import org.apache.hadoop.hbase.regionserver.Region;
import org.apache.hadoop.hbase.regionserver.Store;
import org.apache.hadoop.hbase.regionserver.compactions.CompactionLifeCycleTracker;

/**
 * Has a region rewrite its rows without those that are not needed: a flush, then a major
 * compaction, both by HBase's own threads.
 *
 * <p>HBase's Thrift servers cannot ask for that. So it is asked with a checkAndPut that has the
 * attribute {@code tms.cleanup}: it takes the right to write, as a read would not, and its
 * condition holds nowhere, so a region without the coprocessor does nothing and says no.
 */
final class Cleanup implements FlushLifeCycleTracker {
  private static final String ATTRIBUTE = "tms.cleanup";

  private final Region region;
  private final RegionMetrics metrics;
  private final Warnings warnings;

  private Cleanup(Region region, RegionMetrics metrics, Warnings warnings) {
    this.region = region;
    this.metrics = metrics;
    this.warnings = warnings;
  }

  /** True if this is not a change of a row but a request for a cleanup. */
  static boolean isAsked(CheckAndMutate asked) {
    Row action = asked.getAction();
    return action instanceof OperationWithAttributes
        && ((OperationWithAttributes) action).getAttribute(ATTRIBUTE) != null;
  }

  /** Has it done; returns before it is. */
  static void request(Region region, RegionMetrics metrics, Warnings warnings) throws IOException {
    region.requestFlush(new Cleanup(region, metrics, warnings));
  }

  @Override
  public void notExecuted(String reason) {
    compact(); // there was nothing in memory, or another flush is under way
  }

  @Override
  public void afterExecution() {
    compact();
  }

  private void compact() {
    try {
      region.requestCompaction(
          "cleanup of TMS", Store.PRIORITY_USER, true, CompactionLifeCycleTracker.DUMMY);
    } catch (IOException | RuntimeException | LinkageError e) {
      metrics.decisionFailed();
      warnings.warn(
          "tms_cleanup_failed, ask again: of", region.getRegionInfo().getRegionNameAsString(), e);
    }
  }
}
