package io.tms.hbase;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import org.apache.hadoop.hbase.ByteBufferKeyValue;
import org.apache.hadoop.hbase.Cell;
import org.apache.hadoop.hbase.KeyValue;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.BenchmarkMode;
import org.openjdk.jmh.annotations.Mode;
import org.openjdk.jmh.annotations.OutputTimeUnit;
import org.openjdk.jmh.annotations.Param;
import org.openjdk.jmh.annotations.Scope;
import org.openjdk.jmh.annotations.Setup;
import org.openjdk.jmh.annotations.State;

/**
 * One decision: with 10,000 topics of 4 partitions and 100,000 invalid transactions known, for
 * cells on the heap and in buffers, in the order of the keys (rows of a partition follow each
 * other) or at random (each row is of another partition, so all is looked up anew).
 */
@State(Scope.Thread)
@BenchmarkMode(Mode.AverageTime)
@OutputTimeUnit(TimeUnit.NANOSECONDS)
public class DecisionBenchmark {
  private static final int TOPICS = 10_000;
  private static final int CELLS = 1 << 10; // that the caches hold, as those that were just read

  /** Where cells are. */
  @Param({"heap", "buffer"})
  public String cells;

  /** How rows follow each other. */
  @Param({"keys", "random"})
  public String order;

  private final Cell[] found = new Cell[CELLS];
  private RowRules rules;
  private Visibility visibility;
  private int at;

  /** Makes records and cells. */
  @Setup
  public void fill() throws IOException {
    Vectors.Source source = new Vectors.Source();
    long[] invalid = new long[100_000];
    for (int i = 0; i < invalid.length; i++) {
      invalid[i] = (Blocks.NOW - 1_000_000 + i * 10L) * Blocks.POINTERS_PER_MS;
    }
    long newest = Blocks.NOW * Blocks.POINTERS_PER_MS;
    source.put("metadata:transactions/image", Images.encode(Blocks.NOW, newest, newest, invalid));
    source.text("metadata:clock/retention", Long.toString(Blocks.NOW));
    for (int uid = 0; uid < TOPICS; uid++) {
      source.text("metadata:topic/a/t" + uid, "{\"uid\":" + uid + ",\"retention_ms\":86400000}");
      for (int partition = 0; partition < 4; partition++) {
        source.text(
            String.format("metadata:partition/%08x/%05d", uid, partition),
            "{\"segments\":[{\"number\":3,\"last\":[1,1]},{\"number\":4}],\"floor\":[0,0]}");
      }
    }
    Metadata metadata = Vectors.reader().read(source, Blocks.NOW);
    rules = RowRules.ofStored(metadata, false, Blocks.NOW, -1);
    visibility = Visibility.committed(metadata, Blocks.NOW, -1);
    Random random = new Random(1);
    for (int i = 0; i < CELLS; i++) {
      boolean anywhere = order.equals("random");
      int uid = anywhere ? random.nextInt(TOPICS) : 1;
      long timeMs = Blocks.NOW - 1_000_000 + random.nextInt(1_000_000);
      String row = Blocks.message(uid, anywhere ? i % 4 : 0, 4, timeMs, 0);
      // Within the range of the invalid ones, but none of them: the whole search.
      long pointer = timeMs * Blocks.POINTERS_PER_MS + 1;
      byte[] block = Blocks.block(Blocks.MINE, pointer, 64);
      found[i] = cell(row.getBytes(StandardCharsets.US_ASCII), block);
    }
  }

  private Cell cell(byte[] row, byte[] block) {
    KeyValue cell = new KeyValue(row, TableSettings.FAMILY, TableSettings.BLOCK, 1, block);
    if (cells.equals("heap")) {
      return cell;
    }
    ByteBuffer buffer = ByteBuffer.allocateDirect(cell.getLength());
    buffer.put(cell.getBuffer(), cell.getOffset(), cell.getLength());
    return new ByteBufferKeyValue(buffer, 0, cell.getLength());
  }

  /** The rules of a flush or compaction. */
  @Benchmark
  public Object stored() {
    at = (at + 1) & (CELLS - 1);
    return rules.reasonOf(found[at]);
  }

  /** The visibility for a committed reader. */
  @Benchmark
  public boolean committed() {
    at = (at + 1) & (CELLS - 1);
    return visibility.isVisible(found[at]);
  }
}
