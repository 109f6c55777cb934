package io.tms.hbase;

import java.io.IOException;
import org.apache.hadoop.hbase.Cell;
import org.apache.hadoop.hbase.CellUtil;
import org.apache.hadoop.hbase.DoNotRetryIOException;
import org.apache.hadoop.hbase.filter.FilterBase;
import org.apache.hadoop.hbase.io.TimeRange;

/**
 * Hides rows from a reader.
 *
 * <p>A filter, not a scanner around HBase's: so limits, batches, partial rows, time-outs and
 * reversed scans count only what the reader gets, without a line of ours; and a hidden row is left
 * by a seek, so further cells of large blocks are not even read. It stands before the reader's own
 * filters, which see no hidden row and count none.
 *
 * <p>The first cell of a row, {@code m:b}, decides. So it is read even if the reader wants only
 * other columns, and the newest version is, even if the time range of the reader leaves it out; see
 * {@link Reading}.
 */
final class VisibilityFilter extends FilterBase {
  private final Visibility visibility;
  private final RegionMetrics metrics;
  private final boolean blockWanted;
  private final TimeRange times;
  private boolean shown; // the row that is being read

  VisibilityFilter(
      Visibility visibility, RegionMetrics metrics, boolean blockWanted, TimeRange times) {
    this.visibility = visibility;
    this.metrics = metrics;
    this.blockWanted = blockWanted;
    this.times = times;
  }

  @Override
  public void reset() {
    shown = false;
  }

  @Override
  public ReturnCode filterCell(Cell cell) throws IOException {
    if (!CellUtil.isPut(cell)) {
      return ReturnCode.INCLUDE; // a raw scan's delete marker
    }
    boolean block = CellUtil.matchingQualifier(cell, TableSettings.BLOCK);
    if (!shown) {
      if (!block || !isVisible(cell)) {
        metrics.hidden();
        return ReturnCode.NEXT_ROW;
      }
      shown = true;
    }
    if (block && !blockWanted) {
      return ReturnCode.NEXT_COL;
    }
    return times.withinTimeRange(cell.getTimestamp()) ? ReturnCode.INCLUDE : ReturnCode.SKIP;
  }

  private boolean isVisible(Cell cell) throws IOException {
    try {
      return visibility.isVisible(cell);
    } catch (RuntimeException | LinkageError e) {
      metrics.decisionFailed();
      throw new DoNotRetryIOException("TMS could not decide whether a row is visible", e);
    }
  }
}
