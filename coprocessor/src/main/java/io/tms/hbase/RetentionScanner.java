package io.tms.hbase;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.EnumMap;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.hbase.ByteBufferExtendedCell;
import org.apache.hadoop.hbase.Cell;
import org.apache.hadoop.hbase.CellUtil;
import org.apache.hadoop.hbase.regionserver.InternalScanner;
import org.apache.hadoop.hbase.regionserver.ScannerContext;
import org.apache.hadoop.hbase.regionserver.Shipper;

/**
 * The output of a flush or a compaction: the rows of another scanner without those that are not
 * needed.
 *
 * <p>A row comes as its delete markers, its cell {@code m:b}, its further cells; maybe in several
 * calls. Delete markers always pass: they are others' business. The first other cell decides for
 * all that follow.
 *
 * <p>Dropping the newest version of a cell must not uncover an older one in a file that is not part
 * of this compaction. All rules but one decide by what every version of a row has in common; a row
 * that was rolled back, though, has an older version that says otherwise. It goes only if no other
 * file can hold that: {@link OtherFiles}.
 *
 * <p>An error of ours keeps the row. Errors of the scanner below are HBase's and pass.
 */
final class RetentionScanner implements InternalScanner, Shipper {
  private static final long DROPPED_BYTES_MAX = 4 << 20;

  private final InternalScanner rows;
  private final RowRules rules;
  private final OtherFiles others;
  private final RegionMetrics metrics;
  private final Warnings warnings;
  private final String table;
  private final Map<Reason, long[]> counts = new EnumMap<>(Reason.class); // one number each

  private byte[] row = new byte[RowKey.PAYLOAD_CHARS];
  private int rowLength = -1;
  private boolean decided;
  private boolean keeping;
  private volatile boolean finished; // and all that was written before is seen with it
  private boolean unsure;
  private boolean closed;
  private boolean lent; // cells since the last shipped()
  private long droppedBytes; // since then

  RetentionScanner(
      InternalScanner rows,
      RowRules rules,
      OtherFiles others,
      RegionMetrics metrics,
      Warnings warnings,
      String table) {
    this.rows = rows;
    this.rules = rules;
    this.others = others;
    this.metrics = metrics;
    this.warnings = warnings;
    this.table = table;
    for (Reason reason : Reason.values()) {
      counts.put(reason, new long[1]);
    }
  }

  @Override
  public boolean next(List<Cell> result, ScannerContext context) throws IOException {
    int kept = result.size();
    boolean more = rows.next(result, context);
    int size = result.size();
    for (int i = kept; i < size; i++) {
      Cell cell = result.get(i);
      if (keeps(cell)) {
        if (kept != i) {
          result.set(kept, cell);
        }
        kept++;
      } else {
        droppedBytes += cell.getSerializedSize();
      }
    }
    if (kept < size) {
      result.subList(kept, size).clear();
    }
    lent |= !result.isEmpty();
    if (!lent && droppedBytes > DROPPED_BYTES_MAX) {
      shipped();
    }
    if (!more) {
      finished = true;
    }
    return more;
  }

  private boolean keeps(Cell cell) {
    if (!isSameRow(cell)) {
      begin(cell);
    }
    if (!CellUtil.isPut(cell)) {
      return true;
    }
    if (!decided) {
      keeping = decide(cell);
      decided = true;
    }
    return keeping;
  }

  private boolean decide(Cell cell) {
    Reason reason;
    boolean dropped;
    try {
      reason =
          CellUtil.matchingQualifier(cell, TableSettings.BLOCK)
              ? rules.reasonOf(cell)
              : Reason.DAMAGED; // a row of ours begins with m:b
      if (reason == Reason.ROLLED_BACK && others.mayHold(rules.key().timeMs())) {
        return true;
      }
      dropped = rules.mayDrop(reason);
    } catch (RuntimeException | LinkageError e) {
      metrics.decisionFailed();
      warnings.warn("tms_decision_failed, the row stays: table", table, e);
      unsure = true;
      return true;
    }
    counts.get(reason.drops() && !dropped ? Reason.OPEN : reason)[0]++;
    if (reason == Reason.UNSURE
        || (reason == Reason.INVALID && !dropped)
        || (reason == Reason.DAMAGED && rules.header().isOfAnotherVersion())) {
      unsure = true;
    }
    return !dropped;
  }

  private boolean isSameRow(Cell cell) {
    if (cell.getRowLength() != rowLength) {
      return false;
    }
    if (cell instanceof ByteBufferExtendedCell) {
      ByteBufferExtendedCell buffered = (ByteBufferExtendedCell) cell;
      ByteBuffer bytes = buffered.getRowByteBuffer();
      int at = buffered.getRowPosition();
      for (int i = rowLength - 1; i >= 0; i--) { // keys differ at their ends
        if (bytes.get(at + i) != row[i]) {
          return false;
        }
      }
      return true;
    }
    byte[] array = cell.getRowArray();
    int offset = cell.getRowOffset();
    for (int i = rowLength - 1; i >= 0; i--) {
      if (array[offset + i] != row[i]) {
        return false;
      }
    }
    return true;
  }

  private void begin(Cell cell) {
    rowLength = cell.getRowLength();
    if (row.length < rowLength) {
      row = new byte[rowLength];
    }
    CellUtil.copyRowTo(cell, row, 0); // the cell's own bytes may be given back by shipped()
    decided = false;
  }

  /** True if every row was seen and judged for certain; valid after it was closed. */
  boolean isCertain() {
    return finished && !unsure;
  }

  /**
   * Gives back the blocks of files that were read. HBase asks for it after so many bytes were
   * written. Where all is dropped nothing is written, and blocks would pile up until the shared
   * buffers of the server are used up; so it is done here as well, but only while nobody holds a
   * cell that came after the last time.
   */
  @Override
  public void shipped() throws IOException {
    lent = false;
    droppedBytes = 0;
    if (rows instanceof Shipper) {
      ((Shipper) rows).shipped();
    }
  }

  @Override
  public void close() throws IOException {
    if (!closed) {
      closed = true;
      counts.forEach((reason, rows) -> metrics.count(reason, rows[0]));
      if (counts.get(Reason.DAMAGED)[0] > 0) {
        warnings.warn("tms_damaged_rows, they stay: table", table, null);
      }
    }
    rows.close();
  }
}
