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
  private final MetadataReader reader = new MetadataReader(new Warnings(0));

  private Metadata read() throws IOException {
    return reader.read(source, NOW);
  }

  private void partition(int partition, long floorMs) {
    source.text(
        String.format("metadata:partition/00000001/%05d", partition),
        "{\"segments\":[],\"floor\":[" + floorMs + ",0]}");
  }

  private static boolean isBelow(Metadata metadata, int partition, long timeMs) {
    int at = metadata.partitions().find(SEALED | partition);
    return at >= 0 && metadata.partitions().isBelowFloor(at, timeMs, 0);
  }

  @Test
  void theClockIsReadBeforeTheTopicsAndNotesOfDeletedOnesToo() throws IOException {
    read();
    assertEquals(
        List.of(
            "metadata:clock/retention",
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
    partition(2, 20);
    partition(3, 30);
    partition(4, 40);
    read();
    source.rows.remove("metadata:partition/00000001/00001");
    Metadata changed = read();
    assertTrue(isBelow(changed, 1, 9)); // not missed yet
    assertTrue(isBelow(changed, 2, 19));
    assertTrue(isBelow(changed, 3, 29));
    assertTrue(isBelow(changed, 4, 39));
    assertFalse(isBelow(changed, 3, 30));
    assertEquals(4, changed.partitions().size());
    assertTrue(source.rowsGiven < 10);
  }

  @Test
  void aRecordWrittenByAServerWhoseClockIsBehindIsNotMissed() throws IOException {
    source.nowMs = NOW;
    partition(1, 10);
    read();
    source.nowMs = NOW - 300_000;
    partition(2, 20);
    assertTrue(isBelow(read(), 2, 19));
  }

  @Test
  void onceInAWhileAllPartitionsAreRead() throws IOException {
    partition(1, 10);
    Metadata known = read();
    source.rows.remove("metadata:partition/00000001/00001");
    for (int i = 0; i < 60; i++) {
      known = read();
    }
    assertEquals(0, known.partitions().size());
  }

  @Test
  void topicsAndTheirRetentionAreReadAnewEachTime() throws IOException {
    source.text("metadata:topic/a/b", "{\"uid\":1,\"retention_ms\":1000}");
    assertEquals(1000, read().topics().retentionMs(1));
    source.text("metadata:topic/a/b", "{\"uid\":1,\"retention_ms\":2000}");
    assertEquals(2000, read().topics().retentionMs(1));
    source.rows.remove("metadata:topic/a/b");
    assertEquals(Topics.NONE, read().topics().retentionMs(1));
  }

  @Test
  void anImageThatCannotBeReadLeavesTheOneBeforeIt() throws IOException {
    source.put("metadata:transactions/image", Images.encode(NOW, 1, 2));
    TransactionImage good = read().image();
    source.text("metadata:transactions/image", "nonsense");
    assertSame(good, read().image());
    source.rows.remove("metadata:transactions/image");
    assertNull(read().image());
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
    assertEquals(10_000, kept[0].topics().size());
    assertEquals(40_000, kept[0].partitions().size());
    assertTrue(kept[0].image().committed().isInvalid(99_999));
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
    return new MetadataReader(new Warnings(0)).read(many, NOW);
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
