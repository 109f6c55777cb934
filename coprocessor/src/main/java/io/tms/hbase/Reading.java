package io.tms.hbase;

import java.io.IOException;
import java.util.NavigableSet;
import org.apache.hadoop.hbase.DoNotRetryIOException;
import org.apache.hadoop.hbase.client.Get;
import org.apache.hadoop.hbase.client.Query;
import org.apache.hadoop.hbase.client.Scan;
import org.apache.hadoop.hbase.filter.Filter;
import org.apache.hadoop.hbase.filter.FilterList;
import org.apache.hadoop.hbase.io.TimeRange;
import org.apache.hadoop.hbase.util.Bytes;
import org.apache.hadoop.hbase.util.EnvironmentEdgeManager;

/** Puts the right filter on a scan or get of the table of messages, as its attributes say. */
final class Reading {
  private static final String ISOLATION = "tms.isolation";
  private static final String SNAPSHOT = "tms.snapshot";

  private final TableSettings settings;
  private final RegionMetrics metrics;

  Reading(TableSettings settings, RegionMetrics metrics) {
    this.settings = settings;
    this.metrics = metrics;
  }

  /** Restricts a scan. */
  void restrict(Scan scan, Metadata metadata) throws IOException {
    NavigableSet<byte[]> columns = scan.getFamilyMap().get(TableSettings.FAMILY);
    Runnable addBlock = () -> scan.addColumn(TableSettings.FAMILY, TableSettings.BLOCK);
    restrict(scan, metadata, columns, scan.getTimeRange(), addBlock);
  }

  /** Restricts a get. */
  void restrict(Get get, Metadata metadata) throws IOException {
    NavigableSet<byte[]> columns = get.getFamilyMap().get(TableSettings.FAMILY);
    Runnable addBlock = () -> get.addColumn(TableSettings.FAMILY, TableSettings.BLOCK);
    restrict(get, metadata, columns, get.getTimeRange(), addBlock);
  }

  private void restrict(
      Query query,
      Metadata metadata,
      NavigableSet<byte[]> columns,
      TimeRange all,
      Runnable addBlock)
      throws IOException {
    Visibility visibility = visibilityFor(query, metadata);
    if (visibility == null) {
      return;
    }
    boolean wanted = isBlockWanted(columns);
    if (!wanted) {
      addBlock.run();
    }
    TimeRange times = timesOf(query, all);
    if (!times.isAllTime()) {
      long end = oneLater(times.getMax());
      query.setColumnFamilyTimeRange(TableSettings.FAMILY, times.getMin(), end);
    }
    query.setFilter(filter(visibility, wanted, times, query.getFilter()));
  }

  /**
   * Refuses every reader that must not get all rows, because the coprocessor did not start.
   *
   * @param showsAll true if the table certainly shows everything to readers that ask for nothing
   */
  static void refuseUnlessRaw(Query query, boolean showsAll) throws IOException {
    byte[] asked = query.getAttribute(ISOLATION);
    boolean raw = asked == null ? showsAll : Bytes.toString(asked).equals("uncommitted");
    if (query.getAttribute(SNAPSHOT) != null || !raw) {
      throw new DoNotRetryIOException(
          "The coprocessor of TMS did not start in this region, see the region server's log; so "
              + "nothing but uncommitted reads work here (tms.isolation of the operation).");
    }
  }

  /** The view of the reader; null: everything. */
  private Visibility visibilityFor(Query query, Metadata metadata) throws IOException {
    byte[] snapshot = query.getAttribute(SNAPSHOT);
    if (snapshot != null) {
      try {
        return Visibility.of(SnapshotCodec.decode(snapshot));
      } catch (Malformed e) {
        throw new DoNotRetryIOException(
            "The attribute tms.snapshot is no transaction as Tephra's TransactionCodec writes it: "
                + e.getMessage(),
            e);
      }
    }
    byte[] asked = query.getAttribute(ISOLATION);
    String isolation = asked == null ? settings.isolation : Bytes.toString(asked);
    if (isolation.equals("uncommitted")) {
      return null;
    }
    if (!isolation.equals("committed")) {
      throw new DoNotRetryIOException(
          "The attribute tms.isolation "
              + (asked == null ? "of the table " + settings.fullTable() : "of this operation")
              + " is uncommitted or committed, not "
              + isolation.substring(0, Math.min(isolation.length(), 40)));
    }
    if (metadata == null || metadata.image == null) {
      throw new DoNotRetryIOException(
          "This region server has not read yet which transactions are committed, so it cannot show "
              + "committed messages of "
              + settings.fullTable()
              + ". Try again in a few seconds; if that does not help, see its log.");
    }
    return Visibility.committed(metadata, EnvironmentEdgeManager.currentTime(), settings.ttlMs);
  }

  private static boolean isBlockWanted(NavigableSet<byte[]> columns) {
    return columns == null || columns.isEmpty() || columns.contains(TableSettings.BLOCK);
  }

  private static TimeRange timesOf(Query query, TimeRange all) {
    TimeRange ours = query.getColumnFamilyTimeRange().get(TableSettings.FAMILY);
    return ours == null ? all : ours;
  }

  /** A block that is rolled back is written again with a time that is one later. */
  private static long oneLater(long endMs) {
    return endMs == Long.MAX_VALUE ? endMs : endMs + 1;
  }

  private Filter filter(Visibility visibility, boolean blockWanted, TimeRange times, Filter own) {
    Filter ours = new VisibilityFilter(visibility, metrics, blockWanted, times);
    return own == null ? ours : new FilterList(FilterList.Operator.MUST_PASS_ALL, ours, own);
  }
}
