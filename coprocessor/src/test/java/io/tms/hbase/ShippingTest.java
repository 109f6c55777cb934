package io.tms.hbase;

import static io.tms.hbase.Blocks.DAY;
import static io.tms.hbase.Blocks.NOW;
import static io.tms.hbase.Blocks.PLAIN;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.hbase.Cell;
import org.apache.hadoop.hbase.regionserver.InternalScanner;
import org.apache.hadoop.hbase.regionserver.NoLimitScannerContext;
import org.apache.hadoop.hbase.regionserver.ScannerContext;
import org.apache.hadoop.hbase.regionserver.Shipper;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/** Blocks of files are given back in time, and never while somebody may use their cells. */
class ShippingTest {
  private static final int MEBIBYTE = 1 << 20;

  /** Rows of one cell each, and how often its blocks were given back. */
  private static final class Rows implements InternalScanner, Shipper {
    private final Deque<Cell> cells = new ArrayDeque<>();
    private int shipped;
    private boolean closed;

    void add(boolean old) {
      String row = Blocks.message(1, 0, 0, old ? NOW - 2 * DAY : NOW, cells.size());
      cells.add(Vectors.block(row, Blocks.block(PLAIN, 0, MEBIBYTE)));
    }

    @Override
    public boolean next(List<Cell> result, ScannerContext context) {
      result.add(cells.remove());
      return !cells.isEmpty();
    }

    @Override
    public void shipped() {
      shipped++;
    }

    @Override
    public void close() {
      closed = true;
    }
  }

  private final Rows rows = new Rows();
  private RegionKit kit;
  private RetentionScanner scanner;

  @BeforeEach
  void open() throws IOException {
    kit = new RegionKit("messages", Map.of());
    kit.records.text("metadata:clock/retention", Long.toString(NOW));
    kit.records.text("metadata:topic/default/a", "{\"uid\":1,\"retention_ms\":" + DAY + "}");
    kit.seal(1, 0, 0);
    RowRules rules = RowRules.ofStored(kit.publish(), false, NOW, -1);
    RegionMetrics metrics =
        new RegionMetrics(
            kit.region()
                .getCoprocessorHost()
                .findCoprocessorEnvironment(RetentionObserver.class.getName())
                .getMetricRegistryForRegionServer());
    OtherFiles none = new OtherFiles(kit.store(), List.of());
    scanner = new RetentionScanner(rows, rules, none, metrics, new Warnings(0), "tms:messages");
  }

  @AfterEach
  void close() throws IOException {
    scanner.close();
    assertTrue(rows.closed);
    kit.close();
  }

  private int read(int count) throws IOException {
    List<Cell> found = new ArrayList<>();
    for (int i = 0; i < count; i++) {
      scanner.next(found, NoLimitScannerContext.getInstance());
    }
    return found.size();
  }

  private void add(int count, boolean old) {
    for (int i = 0; i < count; i++) {
      rows.add(old);
    }
  }

  @Test
  void blocksOfALongRunOfDroppedRowsAreGivenBack() throws IOException {
    add(20, true);
    assertEquals(0, read(20));
    assertEquals(5, rows.shipped); // each time after 4 MiB
  }

  @Test
  void nothingIsGivenBackWhileCellsAreInUse() throws IOException {
    add(1, false);
    add(20, true);
    assertEquals(1, read(21));
    assertEquals(0, rows.shipped);
    scanner.shipped(); // HBase has copied what it holds
    add(5, true);
    assertEquals(0, read(5));
    assertEquals(2, rows.shipped);
  }

  @Test
  void rowsThatStayAreGivenBackByHbaseAlone() throws IOException {
    add(20, false);
    assertEquals(20, read(20));
    assertEquals(0, rows.shipped);
  }
}
