package io.tms.hbase;

import static io.tms.hbase.Blocks.DAY;
import static io.tms.hbase.Blocks.HOUR;
import static io.tms.hbase.Blocks.MINE;
import static io.tms.hbase.Blocks.NOW;
import static io.tms.hbase.Blocks.PLAIN;
import static io.tms.hbase.Blocks.POINTERS_PER_MS;
import static io.tms.hbase.Blocks.STAGED;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.hadoop.hbase.CellUtil;
import org.apache.hadoop.hbase.client.Delete;
import org.apache.hadoop.hbase.client.Put;
import org.apache.hadoop.hbase.client.Scan;
import org.apache.hadoop.hbase.util.Bytes;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** What flushes and compactions leave of rows. */
class CleaningTest {
  private static final long DEAD = (NOW - 5 * HOUR) * POINTERS_PER_MS;
  private static final String EXPIRED = Blocks.message(1, 0, 0, NOW - 2 * DAY, 0);
  private static final String YOUNG = Blocks.message(1, 0, 0, NOW - HOUR, 0);

  private static RegionKit messages() throws IOException {
    return kit("messages", Map.of());
  }

  /** A store with topic 1, which keeps its messages for a day, and a transaction that is dead. */
  private static RegionKit kit(String table, Map<String, String> attributes) throws IOException {
    RegionKit kit = new RegionKit(table, attributes);
    kit.records.text("metadata:clock/retention", Long.toString(NOW));
    kit.records.text("metadata:topic/default/a", "{\"uid\":1,\"retention_ms\":" + DAY + "}");
    kit.seal(1, 0, 0);
    kit.seal(1, 5, 0);
    writeImage(kit, NOW, DEAD);
    return kit;
  }

  private static void writeImage(RegionKit kit, long timeMs, long... invalid) {
    long newest = timeMs * POINTERS_PER_MS;
    kit.records.put("metadata:transactions/image", Images.encode(timeMs, newest, newest, invalid));
  }

  private static void fill(RegionKit kit) throws IOException {
    kit.put(Blocks.message(EXPIRED, PLAIN, 0));
    kit.put(Blocks.message(YOUNG, PLAIN, 0));
  }

  @Test
  void aFlushDropsWhatIsExpired() throws IOException {
    try (RegionKit kit = messages()) {
      kit.publish();
      fill(kit);
      kit.flush();
      assertEquals(Set.of(YOUNG), kit.rows().keySet());
      assertEquals(1, kit.counted("dropped_expired"));
    }
  }

  @Test
  void rowsExpireByTheNotedTimeHoweverFarTheServersClockHasGone() throws IOException {
    try (RegionKit kit = messages()) {
      kit.clock.setValue(NOW + 400 * DAY);
      kit.publish();
      fill(kit);
      kit.flush();
      assertEquals(Set.of(YOUNG), kit.rows().keySet());
    }
  }

  @Test
  void rowsDoNotExpireByANotedTimeThatIsAheadOfTheServersClock() throws IOException {
    try (RegionKit kit = messages()) {
      kit.clock.setValue(NOW - 30 * DAY);
      kit.publish();
      fill(kit);
      kit.flush();
      assertEquals(2, kit.rows().size());
    }
  }

  @Test
  void everythingStaysWhileMetadataWasNeverRead() throws IOException {
    try (RegionKit kit = messages()) {
      fill(kit);
      kit.put(Blocks.takenBack(Blocks.message(1, 0, 0, NOW, 1), MINE, DEAD));
      long before = kit.counted("kept_unsure");
      kit.flush();
      kit.compact(true);
      assertEquals(3, kit.rows().size());
      assertEquals(before + 6, kit.counted("kept_unsure"));
    }
  }

  @Test
  void theKillSwitchKeepsEverything() throws IOException {
    try (RegionKit kit = kit("messages", Map.of("tms.enabled", "false"))) {
      kit.publish();
      fill(kit);
      kit.flush();
      kit.compact(true);
      assertEquals(2, kit.rows().size());
    }
  }

  @Test
  void aSwitchThatIsNeitherOnNorOffIsOff() throws IOException {
    try (RegionKit kit = kit("messages", Map.of("tms.enabled", "no"))) {
      kit.publish();
      fill(kit);
      kit.flush();
      assertEquals(2, kit.rows().size());
    }
  }

  @Test
  void aTableOfAnotherNameIsLeftAlone() throws IOException {
    try (RegionKit kit = kit("messages_copy", Map.of())) {
      kit.publish();
      fill(kit);
      kit.flush();
      assertEquals(2, kit.rows().size());
    }
  }

  @Test
  void anErrorOfOursKeepsTheRowAndIsCounted() throws IOException {
    try (RegionKit kit = messages()) {
      Metadata good = kit.publish();
      long[] places = {1L << 16, 1L << 16 | 5};
      long[] words = {0, 0, 0, NOW + DAY, 0};
      Partitions planted =
          new Partitions(places, new int[] {-9, 0, 5}, words); // the first: nowhere
      kit.observer().cache().publish(Vectors.with(good, planted));
      fill(kit);
      String elsewhere = Blocks.message(1, 5, 0, NOW - 2 * DAY, 0);
      kit.put(Blocks.message(elsewhere, PLAIN, 0));
      long before = kit.counted("decision_errors");
      kit.flush();
      assertEquals(Set.of(EXPIRED, YOUNG), kit.rows().keySet());
      assertEquals(before + 2, kit.counted("decision_errors"));
    }
  }

  @Test
  void whatWasLostInACrashGoesLikeWhatIsInvalid() throws IOException {
    String lost = Blocks.message(1, 0, 0, NOW - HOUR, 1);
    String after = Blocks.message(1, 0, 0, NOW - HOUR, 2);
    try (RegionKit kit = messages()) {
      long newest = NOW * POINTERS_PER_MS;
      byte[] image = Images.encode(NOW, newest, newest);
      kit.records.put(
          "metadata:transactions/image",
          Images.withLost(image, DEAD, DEAD + 3, DEAD + 5, DEAD + 6));
      kit.publish();
      kit.put(Blocks.message(lost, MINE, DEAD + 2));
      kit.put(Blocks.message(after, MINE, DEAD + 3));
      kit.flush();
      assertEquals(Set.of(after), kit.rows().keySet());
    }
  }

  @Test
  void nothingOfAnOpenSegmentGoesButWithItsTopic() throws IOException {
    String expired = Blocks.message(1, 0, 1, NOW - 2 * DAY, 1);
    String invalid = Blocks.message(1, 0, 1, NOW - HOUR, 2);
    String unknown = Blocks.message(1, 7, 0, NOW - 2 * DAY, 3); // of a partition without a record
    try (RegionKit kit = messages()) {
      kit.publish();
      kit.put(Blocks.message(expired, PLAIN, 0));
      kit.put(Blocks.message(invalid, MINE, DEAD));
      kit.put(Blocks.message(unknown, PLAIN, 0));
      long before = kit.counted("kept_open");
      kit.flush();
      kit.compact(true);
      assertEquals(Set.of(expired, invalid, unknown), kit.rows().keySet());
      assertEquals(before + 6, kit.counted("kept_open"));
      kit.seal(1, 0, 1);
      kit.publish();
      kit.compact(true);
      assertEquals(Set.of(unknown), kit.rows().keySet());
    }
  }

  @Test
  void anOlderImageOnlyDelays() throws IOException {
    String row = Blocks.message(1, 0, 0, NOW - HOUR, 0);
    try (RegionKit kit = messages()) {
      writeImage(kit, NOW - 6 * HOUR); // of a time before the transaction began
      kit.publish();
      kit.put(Blocks.message(row, MINE, DEAD));
      kit.flush();
      kit.compact(true);
      assertEquals(Set.of(row), kit.rows().keySet());
      writeImage(kit, NOW, DEAD);
      kit.publish();
      kit.compact(true);
      assertEquals(Set.of(), kit.rows().keySet());
    }
  }

  @Test
  void aBlockThatWasTakenBackNeverShowsUpAsItWasBefore() throws IOException {
    String row = Blocks.message(1, 0, 0, NOW - HOUR, 0);
    try (RegionKit kit = messages()) {
      kit.publish();
      kit.put(Blocks.message(row, MINE, DEAD + 1));
      kit.flush();
      kit.put(Blocks.takenBack(row, MINE, DEAD + 1));
      kit.flush(); // the file that was written before holds the block as it was
      assertEquals(Map.of(row, MINE | Blocks.BACK), kit.rows());
      kit.compact(true);
      assertEquals(Map.of(), kit.rows());
    }
  }

  @Test
  void aBlockThatWasTakenBackBeforeTheFlushGoesWithIt() throws IOException {
    String row = Blocks.message(1, 0, 0, NOW - HOUR, 0);
    try (RegionKit kit = messages()) {
      kit.publish();
      fill(kit);
      kit.put(Blocks.message(Blocks.message(1, 0, 0, NOW, 0), PLAIN, 0));
      kit.flush(); // a file of other times
      kit.put(Blocks.message(Blocks.message(1, 0, 0, NOW + 9, 0), PLAIN, 0));
      String late = Blocks.message(1, 0, 0, NOW + 5, 0);
      kit.put(Blocks.message(late, MINE, DEAD + 1));
      kit.put(Blocks.takenBack(late, MINE, DEAD + 1));
      kit.flush();
      assertTrue(kit.rows().containsKey(YOUNG));
      assertEquals(false, kit.rows().containsKey(late), row);
    }
  }

  @ParameterizedTest
  @ValueSource(strings = {"1", "2", "10"})
  void aRowGoesWithAllItsCellsInHoweverManyCallsTheyCome(String cellsPerCall) throws IOException {
    try (RegionKit kit =
        new RegionKit("messages", Map.of(), "hbase.hstore.compaction.kv.max", cellsPerCall)) {
      kit.records.text("metadata:clock/retention", Long.toString(NOW));
      kit.records.text("metadata:topic/default/a", "{\"uid\":1,\"retention_ms\":" + DAY + "}");
      kit.seal(1, 0, 0);
      kit.publish();
      for (String row : List.of(EXPIRED, YOUNG)) {
        Put put = Blocks.message(row, PLAIN, 0);
        for (int i = 1; i < 5; i++) {
          put.addColumn(TableSettings.FAMILY, Bytes.toBytes("b0" + i), 1, new byte[100]);
        }
        kit.put(put);
      }
      kit.flush();
      assertEquals(Set.of(YOUNG), kit.rows().keySet());
      assertEquals(5, kit.read(new Scan(), false).get(0).size());
    }
  }

  @Test
  void deleteMarkersOfOthersPassAndGoOnHiding() throws IOException {
    try (RegionKit kit = messages()) {
      kit.publish();
      kit.put(Blocks.message(YOUNG, PLAIN, 0));
      kit.flush();
      kit.region().delete(new Delete(Bytes.toBytes(YOUNG)));
      kit.region().delete(new Delete(Bytes.toBytes(EXPIRED)));
      kit.flush();
      long markers =
          kit.read(new Scan().setRaw(true), false).stream()
              .flatMap(List::stream)
              .filter(cell -> !CellUtil.isPut(cell))
              .count();
      assertEquals(2, markers);
      assertEquals(Set.of(), kit.rows().keySet());
      kit.compact(true);
      assertEquals(List.of(), kit.read(new Scan().setRaw(true), false));
    }
  }

  @Test
  void aRowBehindADeleteMarkerIsStillJudged() throws IOException {
    try (RegionKit kit = messages()) {
      kit.publish();
      byte[] more = Bytes.toBytes("b01");
      byte[] row = Bytes.toBytes(EXPIRED);
      Delete marker = new Delete(row).addFamily(TableSettings.FAMILY, 1);
      kit.region().delete(marker.addColumn(TableSettings.FAMILY, more, NOW));
      kit.put(Blocks.message(EXPIRED, PLAIN, 0));
      kit.put(new Put(row).addColumn(TableSettings.FAMILY, more, NOW + 1, new byte[9]));
      kit.flush();
      assertEquals(Set.of(), kit.rows().keySet());
      assertEquals(2, kit.read(new Scan().setRaw(true), false).get(0).size());
    }
  }

  @Test
  void rowsThatAreNotOursStayAndAreCounted() throws IOException {
    try (RegionKit kit = messages()) {
      kit.publish();
      Put another = new Put(Bytes.toBytes(EXPIRED));
      another.addColumn(TableSettings.FAMILY, Bytes.toBytes("a"), 1, new byte[0]);
      kit.put(another);
      kit.put(Blocks.put("short", 1, new byte[0]));
      kit.put(Blocks.put("long".repeat(100), 1, Blocks.block(MINE, DEAD, 64)));
      long before = kit.counted("damaged");
      kit.flush();
      assertEquals(Set.of(EXPIRED, "short", "long".repeat(100)), kit.rows().keySet());
      assertEquals(before + 3, kit.counted("damaged"));
    }
  }

  @Test
  void stagedBlocksGoByTheTimeOfTheirTransaction() throws IOException {
    try (RegionKit kit = kit("payloads", Map.of())) {
      kit.publish();
      long old = (NOW - DAY - 26 * HOUR - 1) * POINTERS_PER_MS;
      long young = (NOW - DAY - 26 * HOUR) * POINTERS_PER_MS;
      String expired = Blocks.payload(1, 0, old, NOW, 0);
      String kept = Blocks.payload(1, 0, young, NOW - 9 * DAY, 0);
      String invalid = Blocks.payload(1, 0, DEAD, NOW, 0);
      kit.put(Blocks.put(expired, NOW, Blocks.block(MINE | STAGED, old, 64)));
      kit.put(Blocks.put(kept, NOW, Blocks.block(MINE | STAGED | Blocks.BACK, young, 64)));
      kit.put(Blocks.put(invalid, NOW, Blocks.block(MINE | STAGED, DEAD, 64)));
      kit.flush();
      assertEquals(Set.of(kept), kit.rows().keySet());
    }
  }

  @Test
  void aTopicOfWhichNothingIsKnownGoesByTheTablesTtlButNotWhatIsNewerThanTheRecords()
      throws IOException {
    try (RegionKit kit = kit("messages", Map.of("tms.ttl", "1000"))) {
      kit.records.text("metadata:clock/retention", Long.toString(NOW + 10 * DAY));
      kit.publish();
      kit.clock.setValue(NOW + 10 * DAY);
      String orphan = Blocks.message(7, 0, 0, NOW - 1001, 0);
      String created = Blocks.message(8, 0, 0, NOW + DAY, 0); // after the records were read
      kit.put(Blocks.message(orphan, PLAIN, 0));
      kit.put(Blocks.message(created, PLAIN, 0));
      kit.flush();
      assertEquals(Set.of(created), kit.rows().keySet());
    }
  }

  private static void addTopicWithoutRetention(RegionKit kit, String defaultMs) {
    kit.records.text(
        "metadata:topic/default/a",
        "{\"uid\":1,\"retention_ms\":null,\"retention_is_default\":true}");
    if (defaultMs != null) {
      kit.records.text("metadata:retention/default", defaultMs);
    }
  }

  @Test
  void aTopicWithoutARetentionGoesByTheTablesTtlOnceTmsGoesByItToo() throws IOException {
    try (RegionKit kit = kit("messages", Map.of("tms.ttl", Long.toString(DAY)))) {
      addTopicWithoutRetention(kit, null); // its readers may still see all of it
      kit.publish();
      fill(kit);
      kit.flush();
      assertEquals(2, kit.rows().size());
      addTopicWithoutRetention(kit, Long.toString(3 * DAY)); // what the table said before
      kit.publish();
      kit.compact(true);
      assertEquals(2, kit.rows().size());
      addTopicWithoutRetention(kit, Long.toString(DAY));
      kit.publish();
      kit.compact(true);
      assertEquals(Set.of(YOUNG), kit.rows().keySet());
    }
  }

  @Test
  void aTtlThatWasMadeLongerCountsAtOnce() throws IOException {
    try (RegionKit kit = kit("messages", Map.of("tms.ttl", Long.toString(3 * DAY)))) {
      addTopicWithoutRetention(kit, Long.toString(DAY));
      kit.publish();
      fill(kit);
      kit.flush();
      assertEquals(2, kit.rows().size());
    }
  }

  @Test
  void rowsThatWereDroppedByTheDefaultAreThoseThatReadersDoNotGet() throws IOException {
    try (RegionKit kit = kit("messages", Map.of("tms.ttl", Long.toString(DAY)))) {
      addTopicWithoutRetention(kit, Long.toString(DAY));
      fill(kit);
      kit.publish();
      Scan committed = new Scan().setAttribute("tms.isolation", Bytes.toBytes("committed"));
      assertEquals(Set.of(YOUNG), kit.rowsRead(committed));
      assertEquals(2, kit.rows().size());
    }
  }

  @Test
  void aDefaultThatCannotBeReadIsAnErrorAndKeepsWhatWasKnown() throws IOException {
    try (RegionKit kit = messages()) {
      addTopicWithoutRetention(kit, "1d");
      assertThrows(Malformed.class, kit::publish);
    }
  }

  @Test
  void aTtlThatIsNoNumberDropsNothing() throws IOException {
    try (RegionKit kit = kit("messages", Map.of("tms.ttl", "1d", "tms.warn.ms", "-1"))) {
      kit.publish();
      String orphan = Blocks.message(7, 0, 0, NOW - 900 * DAY, 0);
      kit.put(Blocks.message(orphan, PLAIN, 0));
      kit.flush();
      assertEquals(Set.of(orphan), kit.rows().keySet());
    }
  }
}
