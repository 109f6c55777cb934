package io.tms.hbase;

import static io.tms.hbase.Blocks.DAY;
import static io.tms.hbase.Blocks.FOREIGN;
import static io.tms.hbase.Blocks.HOUR;
import static io.tms.hbase.Blocks.MINE;
import static io.tms.hbase.Blocks.NOW;
import static io.tms.hbase.Blocks.PLAIN;
import static io.tms.hbase.Blocks.POINTERS_PER_MS;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import org.apache.hadoop.hbase.Cell;
import org.apache.hadoop.hbase.CellUtil;
import org.apache.hadoop.hbase.CompareOperator;
import org.apache.hadoop.hbase.DoNotRetryIOException;
import org.apache.hadoop.hbase.TableName;
import org.apache.hadoop.hbase.client.Get;
import org.apache.hadoop.hbase.client.Query;
import org.apache.hadoop.hbase.client.Result;
import org.apache.hadoop.hbase.client.Scan;
import org.apache.hadoop.hbase.client.TableDescriptorBuilder;
import org.apache.hadoop.hbase.coprocessor.ObserverContextImpl;
import org.apache.hadoop.hbase.coprocessor.RegionCoprocessorEnvironment;
import org.apache.hadoop.hbase.filter.ColumnPaginationFilter;
import org.apache.hadoop.hbase.filter.KeyOnlyFilter;
import org.apache.hadoop.hbase.filter.PageFilter;
import org.apache.hadoop.hbase.filter.SingleColumnValueFilter;
import org.apache.hadoop.hbase.regionserver.InternalScanner;
import org.apache.hadoop.hbase.regionserver.Region;
import org.apache.hadoop.hbase.util.Bytes;
import org.apache.hbase.thirdparty.com.google.gson.JsonObject;
import org.apache.hbase.thirdparty.com.google.gson.JsonParser;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** What readers get of the messages, by the attributes that they send. */
class ReadingTest {
  private static final byte[] MORE = Bytes.toBytes("b01");
  private static final long DEAD = (NOW - 5 * HOUR) * POINTERS_PER_MS;
  private static final long OPEN = (NOW - 4 * HOUR) * POINTERS_PER_MS;
  private static final long DONE = (NOW - 3 * HOUR) * POINTERS_PER_MS;
  private static final long LATER = (NOW - 2 * HOUR) * POINTERS_PER_MS;

  private final String plain = row(0);
  private final String done = row(1);
  private final String open = row(2);
  private final String dead = row(3);
  private final String later = row(4);
  private final String back = row(5);
  private final String foreign = row(6);
  private final String damaged = row(7);
  private final String expired = Blocks.message(1, 0, 0, NOW - 2 * DAY, 0);
  private final String orphan = Blocks.message(9, 0, 0, NOW - 2 * DAY, 0);
  private final String last = row(8);

  private RegionKit kit;

  private static String row(int sequence) {
    return Blocks.message(1, 0, 0, NOW - HOUR, sequence);
  }

  @BeforeEach
  void fill() throws IOException {
    fill(Map.of());
  }

  private void fill(Map<String, String> attributes) throws IOException {
    kit = RegionKit.ofMessages(kit, attributes);
    kit.records.text("metadata:topic/default/a", "{\"uid\":1,\"retention_ms\":" + DAY + "}");
    long[] invalid = {DEAD};
    long[] inProgress = {OPEN};
    kit.records.put(
        "metadata:transactions/image", Images.encode(NOW, DONE, LATER, invalid, inProgress));
    put(plain, PLAIN, 0);
    put(done, MINE, DONE);
    put(open, MINE, OPEN);
    put(dead, MINE, DEAD);
    put(later, MINE, LATER);
    put(back, MINE, DONE);
    put(foreign, FOREIGN, DONE);
    kit.put(Blocks.put(damaged, NOW - HOUR, new byte[0]));
    put(expired, PLAIN, 0);
    put(orphan, PLAIN, 0);
    put(last, PLAIN, 0);
    kit.flush(); // metadata was not read yet: all of them stay
    kit.put(Blocks.takenBack(back, MINE, DONE));
    kit.publish();
  }

  private void put(String row, int flags, long pointer) throws IOException {
    long at = Blocks.timeOf(row);
    kit.put(
        Blocks.put(row, at, Blocks.block(flags, pointer, 64))
            .addColumn(TableSettings.FAMILY, MORE, at, new byte[10]));
  }

  @AfterEach
  void close() throws IOException {
    kit.close();
  }

  private Set<String> all() {
    return new TreeSet<>(
        List.of(plain, done, open, dead, later, back, foreign, damaged, expired, orphan, last));
  }

  private static Scan committed() {
    return new Scan().setAttribute("tms.isolation", Bytes.toBytes("committed"));
  }

  private Set<String> read(Scan scan) throws IOException {
    return kit.rowsRead(scan);
  }

  private static byte[] snapshot(long id, long readPointer, long[] invalid, long[] inProgress)
      throws IOException {
    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    DataOutputStream out = new DataOutputStream(bytes);
    field(out, 10, 1).writeLong(id);
    field(out, 10, 2).writeLong(readPointer);
    list(field(out, 15, 3), invalid);
    list(field(out, 15, 4), inProgress);
    field(out, 10, 7).writeLong(id);
    out.write(0);
    return bytes.toByteArray();
  }

  private static DataOutputStream field(DataOutputStream out, int type, int number)
      throws IOException {
    out.write(type);
    out.writeShort(number);
    return out;
  }

  private static void list(DataOutputStream out, long[] values) throws IOException {
    out.write(10);
    out.writeInt(values.length);
    for (long value : values) {
      out.writeLong(value);
    }
  }

  @Test
  void whoAsksForNothingGetsEverything() throws IOException {
    assertEquals(all(), read(new Scan()));
    Scan asked = new Scan().setAttribute("tms.isolation", Bytes.toBytes("uncommitted"));
    assertEquals(all(), read(asked));
  }

  @Test
  void aCommittedReaderGetsWhatIsCommittedAndNeeded() throws IOException {
    long before = kit.counted("hidden");
    assertEquals(Set.of(plain, done, orphan, last), read(committed()));
    assertEquals(before + 7, kit.counted("hidden"));
  }

  @Test
  void aTransactionGetsWhatItsSnapshotIncludes() throws IOException {
    byte[] bytes = snapshot(LATER, DONE, new long[] {DEAD}, new long[] {OPEN});
    Set<String> seen =
        Set.of(plain, done, later, foreign, expired, orphan, last); // `later` is its own
    assertEquals(seen, read(new Scan().setAttribute("tms.snapshot", bytes)));
    assertEquals(seen, read(committed().setAttribute("tms.snapshot", bytes)));
  }

  @Test
  void theTablesAttributeIsForThoseWhoAskForNothing() throws IOException {
    fill(Map.of("tms.isolation", "committed"));
    assertEquals(Set.of(plain, done, orphan, last), read(new Scan()));
    Scan asked = new Scan().setAttribute("tms.isolation", Bytes.toBytes("uncommitted"));
    assertEquals(all(), read(asked));
  }

  @Test
  void theKillSwitchHidesNothing() throws IOException {
    fill(Map.of("tms.enabled", "false"));
    assertEquals(all(), read(committed()));
    assertEquals(all(), read(new Scan().setAttribute("tms.snapshot", new byte[] {9})));
  }

  @Test
  void anAttributeThatMakesNoSenseIsNamed() {
    Scan isolation = new Scan().setAttribute("tms.isolation", Bytes.toBytes("serializable"));
    assertRefused(isolation, "tms.isolation of this operation");
    Scan snapshot = new Scan().setAttribute("tms.snapshot", new byte[] {10, 0, 1});
    assertRefused(snapshot, "tms.snapshot");
  }

  @Test
  void aTablesAttributeThatMakesNoSenseIsNamed() throws IOException {
    fill(Map.of("tms.isolation", "serializable"));
    assertRefused(new Scan(), "tms.isolation of the table tms:messages");
  }

  private void assertRefused(Scan scan, String what) {
    Exception error = assertThrows(DoNotRetryIOException.class, () -> read(scan));
    assertTrue(error.getMessage().contains(what), error.getMessage());
  }

  @Test
  void nobodyGetsCommittedMessagesBeforeItIsKnownWhatIsCommitted() throws IOException {
    kit.observer().cache().publish(null);
    assertRefused(committed(), "has not read yet which transactions are committed");
    kit.records.rows.remove("metadata:transactions/image");
    kit.publish();
    assertRefused(committed(), "has not read yet which transactions are committed");
    assertEquals(all(), read(new Scan()));
    byte[] bytes = snapshot(LATER, DONE, new long[] {DEAD}, new long[] {OPEN});
    assertTrue(read(new Scan().setAttribute("tms.snapshot", bytes)).contains(done));
  }

  @Test
  void whoWantsOtherColumnsIsStillJudgedByTheBlock() throws IOException {
    List<List<Cell>> rows = kit.read(committed().addColumn(TableSettings.FAMILY, MORE), true);
    assertEquals(4, rows.size());
    for (List<Cell> row : rows) {
      assertEquals(1, row.size());
      assertTrue(CellUtil.matchingQualifier(row.get(0), MORE));
    }
  }

  @ParameterizedTest
  @ValueSource(booleans = {true, false})
  void aTimeRangeDoesNotUncoverWhatWasTakenBack(boolean ofFamily) throws IOException {
    long at = NOW - HOUR;
    Scan scan = committed();
    if (ofFamily) {
      scan.setColumnFamilyTimeRange(TableSettings.FAMILY, at, at + 1);
    } else {
      scan.setTimeRange(at, at + 1);
    }
    assertEquals(Set.of(plain, done, last), read(scan));
    assertEquals(Set.of(), read(committed().setTimeRange(at + 1, at + 2)));
    assertEquals(Set.of(orphan), read(committed().setTimeRange(0, at)));
    Get get = new Get(Bytes.toBytes(back)).setTimestamp(at);
    get.setAttribute("tms.isolation", Bytes.toBytes("committed"));
    assertTrue(kit.region().get(get).isEmpty());
  }

  @Test
  void theReadersOwnFiltersSeeNoHiddenRow() throws IOException {
    assertEquals(Set.of(orphan, plain), read(committed().setFilter(new PageFilter(2))));
    Scan keys = committed().setFilter(new KeyOnlyFilter());
    assertEquals(Set.of(plain, done, orphan, last), read(keys));
    SingleColumnValueFilter never =
        new SingleColumnValueFilter(
            TableSettings.FAMILY, MORE, CompareOperator.EQUAL, Bytes.toBytes("no"));
    assertEquals(Set.of(), read(committed().setFilter(never)));
    Scan first = committed().setFilter(new ColumnPaginationFilter(1, 1));
    for (List<Cell> row : kit.read(first, true)) {
      assertTrue(CellUtil.matchingQualifier(row.get(0), MORE));
    }
  }

  @Test
  void batchesCountOnlyShownCells() throws IOException {
    List<String> found = new ArrayList<>();
    for (List<Cell> cells : kit.read(committed().setBatch(1), true)) {
      assertEquals(1, cells.size());
      found.add(Bytes.toString(CellUtil.cloneRow(cells.get(0))));
    }
    assertEquals(8, found.size());
  }

  @Test
  void aGetIsJudgedLikeAScan() throws IOException {
    for (String row : all()) {
      Get get = new Get(Bytes.toBytes(row));
      assertFalse(kit.region().get(get).isEmpty());
      get.setAttribute("tms.isolation", Bytes.toBytes("committed"));
      boolean seen = Set.of(plain, done, orphan, last).contains(row);
      assertEquals(seen, !kit.region().get(get).isEmpty(), row);
      Get more = new Get(Bytes.toBytes(row)).addColumn(TableSettings.FAMILY, MORE);
      more.setAttribute("tms.isolation", Bytes.toBytes("committed"));
      assertEquals(seen ? 1 : 0, kit.region().get(more).size(), row);
    }
  }

  @Test
  void stagedBlocksAreReadRaw() throws IOException {
    kit.close();
    kit = new RegionKit("payloads", Map.of());
    String row = Blocks.payload(1, 0, OPEN, NOW, 0);
    kit.put(Blocks.put(row, NOW, Blocks.block(MINE, OPEN, 64)));
    assertEquals(Set.of(row), read(committed()));
  }

  @Test
  void aProbeAnswersNothingButWhatTheServerKnows() throws IOException {
    kit.clock.setValue(NOW + 7);
    Query get = new Get(Bytes.toBytes(plain)).setAttribute("tms.probe", new byte[] {1});
    Result result = kit.region().get((Get) get);
    assertEquals(1, result.size());
    assertEquals(
        "{\"version\": \"0.1.0\", \"enabled\": true, \"metadata_age_ms\": 7,"
            + " \"topics_age_ms\": 7, \"image_age_ms\": 7, \"table\": \"tms:messages\"}",
        Bytes.toString(result.getValue(TableSettings.FAMILY, Bytes.toBytes("probe"))));
  }

  @Test
  void aProbeAnswersAlsoWhenSwitchedOffAndBeforeAnythingWasRead() throws IOException {
    fill(Map.of("tms.enabled", "false"));
    kit.observer().cache().publish(null);
    Get get = new Get(Bytes.toBytes("x")).setAttribute("tms.probe", new byte[0]);
    String json = Bytes.toString(kit.region().get(get).value());
    JsonObject answer = JsonParser.parseString(json).getAsJsonObject();
    assertFalse(answer.get("enabled").getAsBoolean());
    assertTrue(answer.get("metadata_age_ms").isJsonNull());
    assertTrue(answer.get("image_age_ms").isJsonNull());
  }

  /** The coprocessor on a table with these attributes where its setup fails. */
  private static RetentionObserver notStarted(
      boolean knowsTable, String name, String... attributes) {
    TableDescriptorBuilder table =
        TableDescriptorBuilder.newBuilder(TableName.valueOf("tms", name));
    for (int i = 0; i < attributes.length; i += 2) {
      table.setValue(attributes[i], attributes[i + 1]);
    }
    Region region = fails(Region.class, "getTableDescriptor", knowsTable ? table.build() : null);
    RetentionObserver observer = new RetentionObserver();
    observer.start(fails(RegionCoprocessorEnvironment.class, "getRegion", region));
    return observer;
  }

  /** Fails at everything but one method, and at that if it has nothing to return. */
  private static <T> T fails(Class<T> type, String but, Object result) {
    return type.cast(
        Proxy.newProxyInstance(
            type.getClassLoader(),
            new Class<?>[] {type},
            (proxy, method, arguments) -> {
              if (method.getName().equals(but) && result != null) {
                return result;
              }
              throw new IllegalStateException("planted");
            }));
  }

  private static void get(RetentionObserver observer, Get get) throws IOException {
    observer.preGetOp(new ObserverContextImpl<>(null, true), get, new ArrayList<>());
  }

  @Test
  void whereItDidNotStartATableThatShowsWhatIsCommittedShowsNothing() throws IOException {
    RetentionObserver observer = notStarted(true, "messages", "tms.isolation", "committed");
    assertThrows(DoNotRetryIOException.class, () -> observer.preScannerOpen(null, new Scan()));
    assertThrows(DoNotRetryIOException.class, () -> get(observer, new Get(new byte[1])));
    assertThrows(DoNotRetryIOException.class, () -> observer.preScannerOpen(null, committed()));
    byte[] all = Bytes.toBytes("uncommitted");
    observer.preScannerOpen(null, new Scan().setAttribute("tms.isolation", all));
    get(observer, new Get(new byte[1]).setAttribute("tms.isolation", all));
  }

  @Test
  void whereItDidNotStartATableThatShowsEverythingDoesSo() throws IOException {
    for (RetentionObserver observer :
        List.of(
            notStarted(true, "messages"),
            notStarted(true, "messages", "tms.isolation", "uncommitted"),
            notStarted(true, "payloads", "tms.isolation", "committed"),
            notStarted(true, "messages", "tms.isolation", "committed", "tms.enabled", "false"))) {
      observer.preScannerOpen(null, new Scan());
      get(observer, new Get(new byte[1]));
      assertThrows(DoNotRetryIOException.class, () -> observer.preScannerOpen(null, committed()));
    }
  }

  @Test
  void whereNotEvenTheTableIsKnownNothingIsShownToWhoAsksForNothing() {
    RetentionObserver observer = notStarted(false, "messages");
    assertThrows(DoNotRetryIOException.class, () -> observer.preScannerOpen(null, new Scan()));
    RetentionObserver misspelt = notStarted(true, "messages", "tms.isolation", "Committed");
    assertThrows(DoNotRetryIOException.class, () -> misspelt.preScannerOpen(null, new Scan()));
  }

  @Test
  void whereItDidNotStartAProbeIsNotAnsweredAndNothingIsDropped() throws IOException {
    RetentionObserver observer = notStarted(true, "messages", "tms.isolation", "committed");
    List<Cell> found = new ArrayList<>();
    Get probe = new Get(new byte[1]).setAttribute("tms.probe", new byte[0]);
    ObserverContextImpl<RegionCoprocessorEnvironment> context =
        new ObserverContextImpl<>(null, true);
    observer.preGetOp(context, probe, found);
    assertEquals(List.of(), found);
    assertTrue(context.shouldBypass());
    InternalScanner rows = fails(InternalScanner.class, "", null);
    assertSame(rows, observer.preFlush(null, null, rows, null));
    assertSame(rows, observer.preCompact(null, null, rows, null, null, null));
  }

  @Test
  void anErrorOfOursFailsTheReadAndShowsNothing() throws IOException {
    Metadata good = kit.publish();
    Partitions planted = new Partitions(new long[] {1L << 16}, new int[1], new long[0]);
    kit.observer().cache().publish(Vectors.with(good, planted));
    assertThrows(DoNotRetryIOException.class, () -> read(committed()));
  }
}
