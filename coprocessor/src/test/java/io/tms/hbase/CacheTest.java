package io.tms.hbase;

import static io.tms.hbase.Blocks.NOW;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNotSame;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;

/** Reading the records, and sharing them between regions. */
class CacheTest {
  private static final long SEALED = 1L << 16;

  private final Vectors.Source source = new Vectors.Source();
  private MetadataReader reader = Vectors.reader();

  private Metadata read() throws IOException {
    return reader.read(source, source.nowMs);
  }

  /** Reads a second later, and again, so many times. */
  private Metadata read(int times) throws IOException {
    Metadata known = null;
    for (int i = 0; i < times; i++) {
      source.nowMs += 1_000;
      known = read();
    }
    return known;
  }

  private void topic(int uid, String retention) {
    source.text("metadata:topic/a/" + uid, "{\"uid\":" + uid + "," + retention + "}");
  }

  private void partition(int partition, long floorMs) {
    source.text(
        String.format("metadata:partition/00000001/%05d", partition),
        "{\"segments\":[],\"floor\":[" + floorMs + ",0]}");
  }

  private static boolean isBelow(Metadata metadata, int partition, long timeMs) {
    int at = metadata.partitions.find(SEALED | partition);
    return at >= 0 && metadata.partitions.isBelowFloor(at, timeMs, 0);
  }

  @Test
  void theClockIsReadBeforeTheTopicsAndNotesOfDeletedOnesToo() throws IOException {
    read();
    assertEquals(
        List.of(
            "metadata:clock/retention",
            "metadata:retention/default",
            "metadata:deleted/",
            "metadata:topic/",
            "metadata:partition/",
            "metadata:transactions/image"),
        source.asked);
  }

  @Test
  void ofThePartitionsOnlyThoseThatChangedAreReadAgain() throws IOException {
    source.nowMs = NOW;
    partition(1, 10);
    partition(3, 10);
    read();
    source.nowMs = NOW + 3_600_000;
    read();
    partition(2, 20);
    partition(3, 30);
    partition(4, 40);
    source.rows.remove("metadata:partition/00000001/00001");
    source.rowsGiven = 0;
    Metadata changed = read();
    assertTrue(isBelow(changed, 1, 9)); // not missed yet
    assertTrue(isBelow(changed, 2, 19));
    assertTrue(isBelow(changed, 3, 29));
    assertTrue(isBelow(changed, 4, 39));
    assertFalse(isBelow(changed, 3, 30));
    assertEquals(4, changed.partitions.size());
    assertEquals(3, source.rowsGiven);
  }

  @Test
  void aRecordWrittenByAServerWhoseClockIsBehindIsNotMissed() throws IOException {
    source.nowMs = NOW;
    partition(1, 10);
    read();
    source.nowMs = NOW - 100_000;
    partition(2, 20);
    source.nowMs = NOW + 10_000;
    assertTrue(isBelow(read(), 2, 19));
  }

  @Test
  void onceInAWhileAllPartitionsAreRead() throws IOException {
    partition(1, 10);
    read();
    source.rows.remove("metadata:partition/00000001/00001");
    assertEquals(1, read(MetadataReader.READS_BETWEEN_ALL_PARTITIONS - 1).partitions.size());
    assertEquals(0, read(1).partitions.size());
  }

  @Test
  void ofTheTopicsOnlyThoseThatChangedAreReadAgain() throws IOException {
    source.nowMs = NOW;
    for (int uid = 0; uid < 1_000; uid++) {
      topic(uid, "\"retention_ms\":1000");
    }
    source.text("metadata:deleted/00001000", "-");
    read();
    source.nowMs = NOW + 3_600_000;
    read();
    source.rowsGiven = 0;
    topic(7, "\"retention_ms\":2000");
    topic(1_001, "\"retention_ms\":null");
    Topics known = read().topics;
    assertEquals(2, source.rowsGiven);
    assertEquals(2_000, known.retentionMs(7));
    assertEquals(1_000, known.retentionMs(8));
    assertEquals(Topics.FOREVER, known.retentionMs(1_001));
    assertTrue(known.isNotedDeleted(0x1000));
    assertEquals(1_001, known.size());
  }

  @Test
  void onceInAWhileAllTopicsAreRead() throws IOException {
    topic(1, "\"retention_ms\":1000");
    read();
    source.rows.remove("metadata:topic/a/1");
    Topics known = read(MetadataReader.READS_BETWEEN_ALL_TOPICS - 1).topics;
    assertEquals(1_000, known.retentionMs(1));
    assertEquals(Topics.NONE, read(1).topics.retentionMs(1));
  }

  @Test
  void aTopicThatWasDeletedIsMissedSoon() throws IOException {
    topic(1, "\"retention_ms\":1000");
    topic(2, "\"retention_ms\":1000");
    read();
    source.rows.remove("metadata:topic/a/1");
    source.text("metadata:deleted/00000001", "a");
    Topics known = read(MetadataReader.READS_BETWEEN_DELETED_TOPICS).topics;
    assertEquals(Topics.NONE, known.retentionMs(1));
    assertTrue(known.isNotedDeleted(1));
    source.text("metadata:deleted/00000002", "is still there");
    source.rowsGiven = 0;
    assertEquals(1_000, read(1).topics.retentionMs(2));
    read(MetadataReader.READS_BETWEEN_DELETED_TOPICS * 2);
    assertTrue(source.rowsGiven < 100, source.rowsGiven + " rows");
  }

  @Test
  void aTopicWhoseRecordCannotBeReadAnyMoreIsNotJudgedByWhatItSaidBefore() throws IOException {
    topic(1, "\"retention_ms\":1000");
    read();
    source.nowMs += 1_000;
    source.text("metadata:topic/a/1", "nonsense");
    assertEquals(Topics.UNSURE, read().topics.retentionMs(1));
    source.nowMs += 1_000;
    topic(1, "\"retention_ms\":\"soon\"");
    assertEquals(Topics.UNSURE, read().topics.retentionMs(1));
  }

  @Test
  void twoTopicsWithOneUidStayUnsureWhenOneOfThemChanges() throws IOException {
    topic(1, "\"retention_ms\":1000");
    source.text("metadata:topic/b/b", "{\"uid\":1,\"retention_ms\":1000}");
    read();
    source.nowMs += 3_600_000;
    read();
    topic(1, "\"retention_ms\":2000");
    assertEquals(Topics.UNSURE, read().topics.retentionMs(1));
  }

  @Test
  void rowsGoByTheClockAsItWasBeforeAllTopicsWereRead() throws IOException {
    source.nowMs = NOW;
    source.text("metadata:clock/retention", Long.toString(NOW));
    topic(1, "\"retention_ms\":1000");
    read();
    source.text("metadata:clock/retention", Long.toString(NOW + 5_000));
    Metadata known = read(1);
    long late = NOW + 400_000;
    assertEquals(NOW, known.certainNowMs(late)); // a longer retention may have been missed
    assertEquals(NOW + 5_000, known.nowMs(late));
    assertEquals(NOW, known.topicsReadAtMs);
    known = read(MetadataReader.READS_BETWEEN_ALL_TOPICS);
    assertEquals(NOW + 5_000, known.certainNowMs(late));
    assertTrue(known.topicsReadAtMs > NOW);
  }

  @Test
  void whatAClockThatLeaptHidesIsFoundByReadingAll() throws IOException {
    source.nowMs = NOW;
    topic(1, "\"retention_ms\":1000");
    read();
    source.nowMs = NOW - 3_600_000; // that of the server that has the records now
    topic(1, "\"retention_ms\":9000");
    source.nowMs = NOW;
    read(MetadataReader.READS_BETWEEN_ALL_TOPICS - 1);
    assertEquals(9_000, read(1).topics.retentionMs(1));
  }

  @Test
  void serversThatStartTogetherReadAllTopicsAtDifferentTimes() throws IOException {
    topic(1, "\"retention_ms\":1000");
    reader = new MetadataReader(new Warnings(0), () -> 0, most -> 3);
    read();
    source.rows.remove("metadata:topic/a/1");
    assertEquals(1_000, read(3).topics.retentionMs(1));
    assertEquals(Topics.NONE, read(1).topics.retentionMs(1));
  }

  @Test
  void anHourOfTenThousandTopicsIsFewRows() throws IOException {
    source.nowMs = NOW;
    for (int uid = 0; uid < 10_000; uid++) {
      topic(uid, "\"retention_ms\":1000");
    }
    read();
    reader.rowsRead();
    readForAnHour();
    // Six times all of them, and for two minutes those that were new; it was 3,600,000.
    long rows = reader.rowsRead();
    assertTrue(rows < 190_000, rows + " rows");
    readForAnHour();
    assertEquals(6 * 10_000 + 360 * 3, reader.rowsRead());
  }

  private void readForAnHour() throws IOException {
    for (int i = 0; i < 360; i++) {
      source.nowMs += 10_000;
      read();
    }
  }

  @Test
  void theClockGoesOnWhileNoServiceNotesIt() {
    long[] atMs = {0};
    RetentionTime time = new RetentionTime(() -> atMs[0]);
    assertEquals(NOW, time.after(NOW));
    atMs[0] = RetentionTime.BEHIND_MS; // no longer than a service may be away, or slow
    assertEquals(NOW, time.after(NOW));
    atMs[0] = 5 * RetentionTime.BEHIND_MS;
    assertEquals(NOW + 4 * RetentionTime.BEHIND_MS, time.after(NOW));
    atMs[0] = 100 * RetentionTime.ABSENCE_MS_MAX;
    long last = NOW + RetentionTime.ABSENCE_MS_MAX - RetentionTime.BEHIND_MS;
    assertEquals(last, time.after(NOW));
    assertEquals(NOW + 1, time.after(NOW + 1)); // a service is back: its word counts
    atMs[0] += 2 * RetentionTime.BEHIND_MS;
    assertEquals(NOW + 1 + RetentionTime.BEHIND_MS, time.after(NOW + 1));
  }

  @Test
  void rowsExpireByTheClockAsItWentOn() throws IOException {
    long[] atMs = {0};
    reader = new MetadataReader(new Warnings(0), () -> atMs[0], most -> most - 1);
    source.text("metadata:clock/retention", Long.toString(NOW));
    assertEquals(NOW, read().certainNowMs(Long.MAX_VALUE));
    atMs[0] = 5 * RetentionTime.BEHIND_MS;
    Metadata known = read(MetadataReader.READS_BETWEEN_ALL_TOPICS);
    long expected = NOW + 4 * RetentionTime.BEHIND_MS;
    assertEquals(expected, known.certainNowMs(Long.MAX_VALUE));
    assertEquals(NOW + 1, known.certainNowMs(NOW + 1)); // never ahead of the server's clock
  }

  @Test
  void anImageThatCannotBeReadLeavesTheOneBeforeIt() throws IOException {
    source.put("metadata:transactions/image", Images.encode(NOW, 1, 2));
    TransactionImage good = read().image;
    source.text("metadata:transactions/image", "nonsense");
    assertSame(good, read().image);
    source.rows.remove("metadata:transactions/image");
    assertNull(read().image);
  }

  @Test
  void aClockThatCannotBeReadIsAnError() {
    source.text("metadata:clock/retention", "soon");
    assertThrows(Malformed.class, this::read);
  }

  @Test
  void whatWasKnownStaysWhileTheRecordsCannotBeRead() throws IOException {
    try (RegionKit kit = new RegionKit("messages", Map.of())) {
      TopicCache cache = kit.observer().cache();
      cache.refresh(kit.records);
      Metadata known = cache.metadata();
      assertNotNull(known);
      kit.records.failing = true;
      long before = kit.counted("refresh_failures");
      cache.refresh(kit.records);
      assertSame(known, cache.metadata());
      assertEquals(before + 1, kit.counted("refresh_failures"));
    }
  }

  @Test
  void regionsOfAServerShareOneThreadThatEndsWithTheLast() throws Exception {
    RegionKit messages = new RegionKit("messages", Map.of());
    TopicCache shared = messages.observer().cache();
    Thread thread = shared.thread();
    RegionKit payloads = new RegionKit("payloads", Map.of());
    assertSame(shared, payloads.observer().cache());
    messages.close();
    assertTrue(thread.isAlive());
    assertTrue(thread.isDaemon());
    payloads.reopen(); // the last one leaves, and comes back
    assertNotSame(shared, payloads.observer().cache());
    thread.join(TimeUnit.SECONDS.toMillis(30));
    assertFalse(thread.isAlive());
    Thread second = payloads.observer().cache().thread();
    payloads.close();
    second.join(TimeUnit.SECONDS.toMillis(30));
    assertFalse(second.isAlive());
  }

  @Test
  void tenThousandTopicsAndAHundredThousandTransactionsFitInSixteenMebibytes() throws IOException {
    Metadata[] kept = new Metadata[1];
    long before = heapUsed();
    kept[0] = large();
    long bytes = heapUsed() - before;
    assertEquals(10_000, kept[0].topics.size());
    assertEquals(40_000, kept[0].partitions.size());
    assertTrue(kept[0].image.committed.isInvalid(99_999));
    assertTrue(bytes < 16 << 20, bytes + " bytes");
  }

  private static Metadata large() throws IOException {
    Vectors.Source many = new Vectors.Source();
    long[] invalid = new long[100_000];
    for (int i = 0; i < invalid.length; i++) {
      invalid[i] = i;
    }
    many.put("metadata:transactions/image", Images.encode(NOW, 1, 1_000_000, invalid));
    String segments =
        String.join(",", Collections.nCopies(3, "{\"number\":%d,\"last\":[1700000000000,9]}"))
            .formatted(1, 2, 3);
    for (int uid = 0; uid < 10_000; uid++) {
      many.text("metadata:topic/a/t" + uid, "{\"uid\":" + uid + ",\"retention_ms\":1000}");
      for (int partition = 0; partition < 4; partition++) {
        many.text(
            String.format("metadata:partition/%08x/%05d", uid, partition),
            "{\"segments\":[" + segments + "],\"floor\":[0,0]}");
      }
    }
    return Vectors.reader().read(many, NOW);
  }

  private static long heapUsed() {
    long least = Long.MAX_VALUE;
    for (int i = 0; i < 5; i++) {
      System.gc();
      Runtime runtime = Runtime.getRuntime();
      least = Math.min(least, runtime.totalMemory() - runtime.freeMemory());
    }
    return least;
  }
}
