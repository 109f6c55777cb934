package io.tms.hbase;

import static io.tms.hbase.Blocks.DAY;
import static io.tms.hbase.Blocks.HOUR;
import static io.tms.hbase.Blocks.MINE;
import static io.tms.hbase.Blocks.PLAIN;
import static io.tms.hbase.Blocks.POINTERS_PER_MS;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ExecutionException;
import java.util.jar.JarEntry;
import java.util.jar.JarOutputStream;
import java.util.stream.Stream;
import org.apache.hadoop.hbase.HBaseTestingUtility;
import org.apache.hadoop.hbase.NamespaceDescriptor;
import org.apache.hadoop.hbase.StartMiniClusterOption;
import org.apache.hadoop.hbase.TableName;
import org.apache.hadoop.hbase.client.Admin;
import org.apache.hadoop.hbase.client.CheckAndMutate;
import org.apache.hadoop.hbase.client.ColumnFamilyDescriptorBuilder;
import org.apache.hadoop.hbase.client.CoprocessorDescriptorBuilder;
import org.apache.hadoop.hbase.client.Delete;
import org.apache.hadoop.hbase.client.Get;
import org.apache.hadoop.hbase.client.Put;
import org.apache.hadoop.hbase.client.RegionInfo;
import org.apache.hadoop.hbase.client.Result;
import org.apache.hadoop.hbase.client.ResultScanner;
import org.apache.hadoop.hbase.client.Scan;
import org.apache.hadoop.hbase.client.Table;
import org.apache.hadoop.hbase.client.TableDescriptor;
import org.apache.hadoop.hbase.client.TableDescriptorBuilder;
import org.apache.hadoop.hbase.util.Bytes;
import org.apache.hbase.thirdparty.com.google.gson.JsonObject;
import org.apache.hbase.thirdparty.com.google.gson.JsonParser;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** What needs real servers: two of them, the tables, clients. */
class ClusterTest {
  private static final TableName MESSAGES = TableName.valueOf("tms:messages");
  private static final TableName PAYLOADS = TableName.valueOf("tms:payloads");
  private static final TableName METADATA = TableName.valueOf("tms:metadata");
  private static final long NOW = System.currentTimeMillis();
  private static final long WAIT_MS = 60_000;

  private static HBaseTestingUtility util;

  @BeforeAll
  static void start() throws Exception {
    util = new HBaseTestingUtility();
    util.getConfiguration().setInt("hbase.hfile.compaction.discharger.interval", 100);
    util.getConfiguration().setInt("hbase.master.info.port", -1);
    util.getConfiguration().setInt("hbase.regionserver.info.port", -1);
    util.startMiniCluster(StartMiniClusterOption.builder().numRegionServers(2).build());
    Admin admin = util.getAdmin();
    admin.createNamespace(NamespaceDescriptor.create("tms").build());
    admin.createTable(table(METADATA).build());
    record("metadata:clock/retention", Long.toString(NOW));
    record("metadata:topic/default/a", "{\"uid\":1,\"retention_ms\":" + DAY + "}");
    record("metadata:partition/00000001/00008", Blocks.sealed(0, NOW + DAY));
    writeImage(NOW);
    byte[][] splits = {Bytes.toBytes("4"), Bytes.toBytes("8"), Bytes.toBytes("c")};
    admin.createTable(withCoprocessor(MESSAGES).build(), splits);
    admin.createTable(withCoprocessor(PAYLOADS).build());
    eventually(() -> probe(MESSAGES, "0").get("image_age_ms").isJsonPrimitive());
  }

  private static TableDescriptorBuilder table(TableName name) {
    return TableDescriptorBuilder.newBuilder(name)
        .setColumnFamily(
            ColumnFamilyDescriptorBuilder.newBuilder(TableSettings.FAMILY)
                .setMaxVersions(1)
                .build());
  }

  private static TableDescriptorBuilder withCoprocessor(TableName name) throws IOException {
    return table(name)
        .setCoprocessor(RetentionObserver.class.getName())
        .setValue("tms.refresh.ms", "50");
  }

  @AfterAll
  static void serversStopWithoutWaitingForThemselves() throws Exception {
    util.shutdownMiniCluster();
    eventually(
        () ->
            Thread.getAllStackTraces().keySet().stream()
                .noneMatch(thread -> thread.getName().startsWith("tms-topic-cache")));
  }

  private interface Check {
    boolean holds() throws Exception;
  }

  private static void eventually(Check check) throws Exception {
    assertTrue(util.waitFor(WAIT_MS, 20, check::holds) >= 0);
  }

  private static void record(String row, String json) throws IOException {
    record(row, Bytes.toBytes(json));
  }

  private static void record(String row, byte[] value) throws IOException {
    try (Table table = util.getConnection().getTable(METADATA)) {
      table.put(
          new Put(Bytes.toBytes(row)).addColumn(TableSettings.FAMILY, Bytes.toBytes("v"), value));
    }
  }

  private static void writeImage(long timeMs, long... invalid) throws IOException {
    long newest = timeMs * POINTERS_PER_MS;
    record("metadata:transactions/image", Images.encode(timeMs, newest, newest, invalid));
  }

  private static JsonObject probe(TableName name, String row) throws IOException {
    try (Table table = util.getConnection().getTable(name)) {
      Result result =
          table.get(new Get(Bytes.toBytes(row)).setAttribute(Probe.ATTRIBUTE, new byte[0]));
      byte[] json = result.getValue(TableSettings.FAMILY, Bytes.toBytes("probe"));
      return JsonParser.parseString(Bytes.toString(json)).getAsJsonObject();
    }
  }

  private static JsonObject note(TableName table, RegionInfo region) throws IOException {
    String row = "!region/" + table.getQualifierAsString() + "/" + region.getEncodedName();
    try (Table metadata = util.getConnection().getTable(METADATA)) {
      byte[] json =
          metadata
              .get(new Get(Bytes.toBytes(row)))
              .getValue(TableSettings.FAMILY, Bytes.toBytes("v"));
      return json == null ? null : JsonParser.parseString(Bytes.toString(json)).getAsJsonObject();
    }
  }

  private static void put(TableName name, Put... puts) throws IOException {
    try (Table table = util.getConnection().getTable(name)) {
      table.put(new ArrayList<>(Arrays.asList(puts)));
    }
  }

  private static List<String> scan(Scan scan) throws IOException {
    List<String> rows = new ArrayList<>();
    try (Table table = util.getConnection().getTable(MESSAGES);
        ResultScanner found = table.getScanner(scan)) {
      for (Result result : found) {
        rows.add(Bytes.toString(result.getRow()));
      }
    }
    return rows;
  }

  private static Scan committed(int partition) {
    String prefix = Blocks.message(1, partition, 0, 0, 0).substring(0, 16);
    return new Scan()
        .setStartStopRowForPrefixScan(Bytes.toBytes(prefix))
        .setAttribute("tms.isolation", Bytes.toBytes("committed"));
  }

  @Test
  void aProbeSaysWhatRunsWhere() throws Exception {
    JsonObject answer = probe(PAYLOADS, "any");
    assertEquals(Version.NAME, answer.get("version").getAsString());
    assertTrue(answer.get("enabled").getAsBoolean());
    assertEquals("tms:payloads", answer.get("table").getAsString());
    assertTrue(probe(MESSAGES, "f").get("metadata_age_ms").getAsLong() >= 0);
  }

  @Test
  void limitsAndPagesCountOnlyWhatTheReaderGets() throws Exception {
    List<String> shown = new ArrayList<>();
    for (int i = 0; i < 40; i++) {
      String row = Blocks.message(1, 7, 0, NOW - HOUR + i, 0);
      boolean plain = i % 4 == 1;
      long open = (NOW + DAY) * POINTERS_PER_MS + i; // above the read pointer
      byte[] block = Blocks.block(plain ? PLAIN : MINE, plain ? 0 : open, 2_000);
      Put put = Blocks.put(row, Blocks.timeOf(row), block);
      put.addColumn(TableSettings.FAMILY, Bytes.toBytes("b01"), Blocks.timeOf(row), block);
      put(MESSAGES, put);
      if (plain) {
        shown.add(row);
      }
    }
    assertEquals(shown, scan(committed(7)));
    assertEquals(shown.subList(0, 3), scan(committed(7).setLimit(3)));
    assertEquals(shown.subList(0, 3), scan(committed(7).setLimit(3).setCaching(1)));
    assertEquals(shown, scan(committed(7).setCaching(1)));
    assertEquals(shown, scan(committed(7).setMaxResultSize(1)));
    List<String> twice = new ArrayList<>();
    shown.forEach(row -> twice.addAll(List.of(row, row)));
    assertEquals(twice, scan(committed(7).setBatch(1)));
    assertEquals(twice, scan(committed(7).setAllowPartialResults(true).setMaxResultSize(1)));
    List<String> backwards = new ArrayList<>(shown);
    java.util.Collections.reverse(backwards);
    Scan reversed =
        committed(7)
            .withStartRow(Bytes.toBytes(shown.get(9)))
            .withStopRow(Bytes.toBytes(shown.get(0)), true)
            .setReversed(true);
    assertEquals(backwards, scan(reversed));
  }

  @Test
  void rowsThatNobodyNeedsGoWithTheFlushAndNoPutIsRefused() throws Exception {
    String old = Blocks.message(1, 8, 0, NOW - 2 * DAY, 0);
    String young = Blocks.message(1, 8, 0, NOW, 0);
    put(MESSAGES, Blocks.message(old, PLAIN, 0), Blocks.message(young, PLAIN, 0));
    put(MESSAGES, Blocks.put("0000 no row of ours", 1, new byte[0]));
    Scan all = committed(8).setAttribute("tms.isolation", Bytes.toBytes("uncommitted"));
    assertEquals(List.of(old, young), scan(all));
    util.getAdmin().flush(MESSAGES);
    assertEquals(List.of(young), scan(all));
  }

  @Test
  void whoMayWriteCanAskARegionToWriteItsRowsAnew() throws Exception {
    String old = Blocks.message(1, 8, 0, NOW - 3 * DAY, 7);
    String young = Blocks.message(1, 8, 0, NOW, 7);
    put(MESSAGES, Blocks.message(old, PLAIN, 0), Blocks.message(young, PLAIN, 0));
    Scan all = committed(8).setAttribute("tms.isolation", Bytes.toBytes("uncommitted"));
    assertTrue(scan(all).contains(old));
    assertTrue(asksForCleanup(MESSAGES, young, new byte[0]));
    eventually(() -> !scan(all).contains(old));
    assertTrue(scan(all).contains(young));
    assertFalse(asksForCleanup(METADATA, "x", new byte[0])); // no coprocessor there
    assertFalse(asksForCleanup(MESSAGES, young, null));
    try (Table table = util.getConnection().getTable(MESSAGES)) {
      table.delete(new Delete(Bytes.toBytes(young)));
    }
    try (Table table = util.getConnection().getTable(METADATA)) {
      assertTrue(table.get(new Get(Bytes.toBytes("x"))).isEmpty());
    }
  }

  private static boolean asksForCleanup(TableName name, String row, byte[] attribute)
      throws IOException {
    byte[] qualifier = Bytes.toBytes("cleanup");
    Put put = new Put(Bytes.toBytes(row)).addColumn(TableSettings.FAMILY, qualifier, new byte[0]);
    put.setAttribute("tms.cleanup", attribute);
    try (Table table = util.getConnection().getTable(name)) {
      return table
          .checkAndMutate(
              CheckAndMutate.newBuilder(put.getRow())
                  .ifEquals(TableSettings.FAMILY, qualifier, Bytes.toBytes("never"))
                  .build(put))
          .isSuccess();
    }
  }

  @Test
  void regionsAreNotedThroughSplitsMergesAndMoves() throws Exception {
    Admin admin = util.getAdmin();
    long dead = (NOW - 3 * HOUR) * POINTERS_PER_MS;
    String row = Blocks.payload(1, 3, dead, NOW - 3 * HOUR, 0);
    String kept = Blocks.payload(1, 4, dead + 1, NOW - 3 * HOUR, 0);
    put(
        PAYLOADS,
        Blocks.put(row, NOW, Blocks.block(MINE, dead, 64)),
        Blocks.put(kept, NOW, Blocks.block(MINE, dead + 1, 64)));
    admin.flush(PAYLOADS);
    admin.split(PAYLOADS, Bytes.toBytes("8"));
    eventually(() -> admin.getRegions(PAYLOADS).size() == 2);
    writeImage(System.currentTimeMillis(), dead);
    long imageMs = System.currentTimeMillis();
    writeImage(imageMs, dead);
    eventually(() -> System.currentTimeMillis() - imageMs >= age(PAYLOADS, "0") - 1_000);
    eventually(
        () -> {
          admin.majorCompact(PAYLOADS);
          return isNoted(PAYLOADS);
        });
    Set<String> starts = new TreeSet<>();
    for (RegionInfo region : admin.getRegions(PAYLOADS)) {
      JsonObject note = note(PAYLOADS, region);
      starts.add(note.get("start").getAsString());
      assertEquals("payloads", note.get("table").getAsString());
      assertTrue(note.get("bound_ms").getAsLong() <= System.currentTimeMillis());
    }
    assertEquals(Set.of("", "8"), starts);
    List<RegionInfo> halves = admin.getRegions(PAYLOADS);
    byte[][] names = {halves.get(0).getEncodedNameAsBytes(), halves.get(1).getEncodedNameAsBytes()};
    eventually(() -> merges(names));
    RegionInfo whole = admin.getRegions(PAYLOADS).get(0);
    assertFalse(halves.contains(whole));
    admin.move(whole.getEncodedNameAsBytes());
    eventually(
        () -> {
          admin.majorCompact(PAYLOADS);
          return isNoted(PAYLOADS);
        });
    assertNotNull(note(PAYLOADS, whole));
  }

  private static boolean merges(byte[][] names) throws Exception {
    try {
      util.getAdmin().mergeRegionsAsync(names, true).get();
      return true;
    } catch (ExecutionException e) { // the files of the region that was split are not gone yet
      return false;
    }
  }

  private static long age(TableName table, String row) throws IOException {
    return probe(table, row).get("image_age_ms").getAsLong();
  }

  private static boolean isNoted(TableName table) throws IOException {
    for (RegionInfo region : util.getAdmin().getRegions(table)) {
      if (note(table, region) == null) {
        return false;
      }
    }
    return true;
  }

  @Test
  void aJarOfAnotherNameReplacesTheOldOneWhileTheServerRuns() throws Exception {
    Admin admin = util.getAdmin();
    TableName messages = TableName.valueOf("two:messages");
    admin.createNamespace(NamespaceDescriptor.create("two").build());
    admin.createTable(table(TableName.valueOf("two:metadata")).build());
    admin.createTable(withJar(messages, "first.jar"));
    eventually(() -> !probe(messages, "x").get("metadata_age_ms").isJsonNull());
    Set<Thread> before = threadsOfTwo();
    assertEquals(1, before.size());
    admin.modifyTable(withJar(messages, "second.jar"));
    eventually(() -> !probe(messages, "x").get("metadata_age_ms").isJsonNull());
    eventually(() -> threadsOfTwo().size() == 1 && !threadsOfTwo().equals(before));
    admin.disableTable(messages);
    eventually(() -> threadsOfTwo().isEmpty());
  }

  private static Set<Thread> threadsOfTwo() {
    Set<Thread> found = new HashSet<>(Thread.getAllStackTraces().keySet());
    found.removeIf(thread -> !thread.getName().equals("tms-topic-cache-two"));
    return found;
  }

  private static TableDescriptor withJar(TableName name, String jarName) throws IOException {
    Path jar = Path.of(util.getDataTestDir().toString(), jarName);
    Files.createDirectories(jar.getParent());
    Path classes = Path.of(System.getProperty("tms.classes"));
    try (JarOutputStream out = new JarOutputStream(Files.newOutputStream(jar));
        Stream<Path> files = Files.walk(classes)) {
      for (Path file : files.filter(Files::isRegularFile).toList()) {
        out.putNextEntry(new JarEntry(classes.relativize(file).toString()));
        Files.copy(file, out);
      }
    }
    return table(name)
        .setCoprocessor(
            CoprocessorDescriptorBuilder.newBuilder(RetentionObserver.class.getName())
                .setJarPath(jar.toUri().toString())
                .build())
        .setValue("tms.refresh.ms", "50")
        .build();
  }

  @Test
  void anEmptyRegionIsNotedWithoutACompaction() throws Exception {
    eventually(
        () -> {
          for (RegionInfo region : util.getAdmin().getRegions(MESSAGES)) {
            if (Bytes.toString(region.getStartKey()).equals("c")) {
              return note(MESSAGES, region) != null;
            }
          }
          return false;
        });
  }
}
