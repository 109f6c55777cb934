package io.tms.hbase;

import static io.tms.hbase.Blocks.HOUR;
import static io.tms.hbase.Blocks.MINE;
import static io.tms.hbase.Blocks.NOW;
import static io.tms.hbase.Blocks.PLAIN;
import static io.tms.hbase.Blocks.POINTERS_PER_MS;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.util.Map;
import org.apache.hadoop.hbase.client.Delete;
import org.apache.hadoop.hbase.regionserver.Store;
import org.apache.hadoop.hbase.regionserver.compactions.CompactionContext;
import org.apache.hadoop.hbase.regionserver.compactions.CompactionLifeCycleTracker;
import org.apache.hadoop.hbase.regionserver.throttle.NoLimitThroughputController;
import org.apache.hadoop.hbase.util.Bytes;
import org.apache.hbase.thirdparty.com.google.gson.JsonObject;
import org.apache.hbase.thirdparty.com.google.gson.JsonParser;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/** Up to which time a region says that it is clean. */
class NotesTest {
  private static final long MINUTE = 60_000;
  private static final long DEAD = (NOW - 48 * HOUR) * POINTERS_PER_MS;

  private RegionKit kit;

  @BeforeEach
  void open() throws IOException {
    open(Map.of());
  }

  private void open(Map<String, String> attributes) throws IOException {
    kit = RegionKit.ofMessages(kit, attributes);
    kit.seal(1, 0, 0);
    image(NOW);
  }

  @AfterEach
  void close() throws IOException {
    kit.close();
  }

  private void image(long timeMs) throws IOException {
    image(timeMs, new long[] {DEAD});
  }

  private void image(long timeMs, long[] invalid) throws IOException {
    long newest = timeMs * POINTERS_PER_MS;
    kit.records.put("metadata:transactions/image", Images.encode(timeMs, newest, newest, invalid));
    kit.publish();
  }

  private void at(long ms) {
    kit.clock.setValue(ms);
  }

  private void write(int sequence) throws IOException {
    kit.put(Blocks.message(Blocks.message(1, 0, 0, NOW, sequence), PLAIN, 0));
  }

  private long due() throws IOException {
    return kit.observer().notes().due(kit.publish().image);
  }

  @Test
  void aRegionThatHoldsNothingIsCleanUpToTheImage() throws IOException {
    at(NOW + MINUTE);
    assertEquals(NOW, due());
    image(NOW + 5 * MINUTE);
    assertEquals(NOW + MINUTE, due()); // or up to now
  }

  @Test
  void aRegionThatStaysEmptyIsNotNotedEachTime() throws IOException {
    assertEquals(NOW, due());
    kit.observer().notes().noted(NOW);
    at(NOW + 9 * MINUTE);
    image(NOW + 9 * MINUTE);
    assertEquals(0, due());
    at(NOW + 10 * MINUTE);
    image(NOW + 10 * MINUTE);
    assertEquals(NOW + 10 * MINUTE, due());
  }

  @Test
  void aRegionWithRowsInMemoryOrInFilesIsNotNotedWithoutACompaction() throws IOException {
    write(0);
    assertEquals(0, due());
    kit.flush();
    assertEquals(0, due());
    kit.region().delete(new Delete(Bytes.toBytes("x")));
    assertEquals(0, due());
  }

  @Test
  void aMajorCompactionCleansUpToTheFlushBeforeIt() throws IOException {
    write(0);
    at(NOW + MINUTE);
    kit.flush();
    write(1);
    at(NOW + 20 * MINUTE);
    image(NOW + 20 * MINUTE);
    kit.compact(true);
    assertEquals(NOW + MINUTE, due());
  }

  @Test
  void aMajorCompactionCleansUpToItsImage() throws IOException {
    write(0);
    at(NOW + 5 * MINUTE);
    kit.flush();
    kit.compact(true);
    image(NOW + 9 * MINUTE); // too late
    assertEquals(NOW, due());
  }

  @Test
  void withNothingInMemoryAMajorCompactionCleansUpToItsBegin() throws IOException {
    write(0);
    kit.flush();
    at(NOW + 50 * MINUTE);
    image(NOW + HOUR);
    kit.compact(true);
    at(NOW + HOUR);
    assertEquals(NOW + 50 * MINUTE, due());
  }

  @Test
  void whileAnOpenSegmentHoldsSomethingInvalidTheRegionIsNotClean() throws IOException {
    kit.put(Blocks.message(Blocks.message(1, 0, 1, NOW, 9), MINE, DEAD));
    kit.flush();
    at(NOW + HOUR);
    image(NOW + HOUR);
    kit.compact(true);
    assertEquals(0, due());
    kit.seal(1, 0, 1);
    image(NOW + HOUR);
    kit.compact(true);
    assertEquals(0, kit.rows().size());
    assertEquals(NOW + HOUR, due());
  }

  @Test
  void aLateWriteThatTheCompactionDidNotSeeIsNotCalledClean() throws IOException { // TEPHRA-224
    String late = Blocks.message(1, 0, 0, NOW, 9);
    write(0);
    kit.flush();
    long writtenMs = NOW + MINUTE;
    at(writtenMs);
    kit.put(Blocks.message(late, MINE, DEAD)); // stays in memory
    at(NOW + HOUR);
    image(NOW + HOUR); // knows that the transaction is invalid
    kit.compact(true);
    assertTrue(due() <= writtenMs);
    kit.observer().notes().noted(due());
    kit.flush();
    assertFalse(kit.rows().containsKey(late));
    kit.compact(true);
    assertTrue(due() > writtenMs);
  }

  @Test
  void aMoveMakesNothingCleanThatTheImageDidNotKnow() throws IOException {
    String late = Blocks.message(1, 0, 0, NOW, 9);
    image(NOW, new long[0]); // the transaction is not invalid yet
    write(0);
    kit.flush();
    kit.put(Blocks.message(late, MINE, DEAD));
    at(NOW + HOUR);
    kit.reopen();
    image(NOW, new long[0]);
    kit.compact(true);
    assertEquals(NOW, due());
    assertTrue(kit.rows().containsKey(late));
  }

  @Test
  void aFlushThatCouldNotBeginDoesNotMoveTheBound() throws Exception {
    RegionNotes notes = kit.observer().notes();
    write(0);
    kit.flush();
    write(1); // is in memory all the time
    notes.flushStarts();
    Thread another = new Thread(notes::flushStarts); // finds the first one under way
    at(NOW + 30 * MINUTE);
    another.start();
    another.join();
    notes.flushEnded();
    image(NOW + HOUR);
    kit.compact(true);
    assertEquals(NOW, due());
  }

  @Test
  void aFileThatWasFlushedAfterTheSelectionIsNotCalledClean() throws IOException {
    write(0);
    kit.flush();
    CompactionContext selected = select();
    at(NOW + MINUTE);
    kit.put(Blocks.message(Blocks.message(1, 0, 0, NOW, 9), MINE, DEAD + 1));
    kit.flush();
    at(NOW + HOUR);
    kit.region().compact(selected, kit.store(), NoLimitThroughputController.INSTANCE, null);
    assertEquals(0, due());
  }

  private CompactionContext select() throws IOException {
    kit.store().triggerMajorCompaction();
    return kit.store()
        .requestCompaction(Store.PRIORITY_USER, CompactionLifeCycleTracker.DUMMY, null)
        .orElseThrow();
  }

  @Test
  void aCompactionThatFailedAtItsEndDidNotClean() throws IOException {
    write(0);
    kit.flush();
    CompactionContext selected = select();
    NoLimitThroughputController failing =
        new NoLimitThroughputController() {
          @Override
          public void finish(String compactionName) {
            throw new IllegalStateException("planted");
          }
        };
    assertThrows(IllegalStateException.class, () -> kit.store().compact(selected, failing, null));
    assertEquals(0, due());
  }

  @Test
  void aCompactionThatWasNotSureOfARowDidNotClean() throws IOException {
    kit.records.text("metadata:partition/00000001/00000", "{");
    kit.publish();
    write(0);
    kit.flush();
    kit.compact(true);
    assertEquals(0, due());
  }

  @Test
  void aBlockOfALaterFormatIsNotCalledClean() throws IOException {
    byte[] block = Blocks.block(MINE, DEAD, 64);
    block[4] = 3;
    String row = Blocks.message(1, 0, 0, NOW, 0);
    kit.put(Blocks.put(row, NOW, block));
    kit.flush();
    kit.compact(true);
    assertEquals(0, due());
  }

  @Test
  void aBlockWithEventTimesIsCleanedLikeAnyOther() throws IOException {
    byte[] block = Blocks.block(MINE, DEAD, 64);
    block[4] = 2;
    String row = Blocks.message(1, 0, 0, NOW, 0);
    kit.put(Blocks.put(row, NOW, block));
    kit.flush();
    kit.compact(true);
    assertFalse(kit.rows().containsKey(row));
    assertEquals(NOW, due());
  }

  @Test
  void aMinorCompactionDoesNotClean() throws IOException {
    for (int i = 0; i < 3; i++) {
      write(i);
      kit.flush();
    }
    write(4);
    kit.compact(false);
    assertEquals(0, due());
  }

  @Test
  void withoutAnImageNothingIsClean() throws IOException {
    kit.records.rows.remove("metadata:transactions/image");
    kit.publish();
    assertEquals(0, due());
    write(0);
    kit.flush();
    kit.compact(true);
    image(NOW);
    assertEquals(0, due());
  }

  @Test
  void switchedOffNothingIsClean() throws IOException {
    open(Map.of("tms.enabled", "false"));
    assertEquals(0, due());
    write(0);
    kit.flush();
    kit.compact(true);
    assertEquals(0, due());
  }

  @Test
  void aClosedRegionIsNotTakenForAnEmptyOne() throws IOException {
    write(0);
    kit.flush();
    RegionNotes notes = kit.observer().notes();
    TransactionImage image = kit.publish().image;
    kit.region().close();
    assertEquals(0, notes.due(image));
  }

  @Test
  void aClockThatWentBackMakesNothingClean() throws IOException {
    at(NOW + 10 * HOUR);
    kit.observer().notes().due(kit.publish().image); // saw an empty memory, at a wrong time
    at(NOW + MINUTE);
    write(0);
    kit.flush();
    write(1);
    at(NOW + 2 * MINUTE);
    image(NOW + HOUR);
    kit.compact(true);
    assertEquals(0, due()); // until the next flush
  }

  @Test
  void aNoteSaysWhatTheContractAsksFor() {
    RegionNotes notes = kit.observer().notes();
    String encoded = kit.region().getRegionInfo().getEncodedName();
    assertEquals("!region/messages/" + encoded, notes.row());
    String json = Bytes.toString(notes.note(7));
    JsonObject note = JsonParser.parseString(json).getAsJsonObject();
    assertEquals("messages", note.get("table").getAsString());
    assertEquals("", note.get("start").getAsString());
    assertEquals("", note.get("end").getAsString());
    assertEquals(7, note.get("bound_ms").getAsLong());
    assertEquals(NOW, note.get("noted_ms").getAsLong());
    assertEquals("0.1.0", note.get("version").getAsString());
    assertTrue(note.has("server"));
  }

  @Test
  void aBoundNeverGoesDownAndIsWrittenAgainUntilThatWorked() {
    String row = kit.observer().notes().row();
    TopicCache cache = kit.observer().cache();
    kit.records.text(row, "{\"bound_ms\": " + (NOW + 1) + "}");
    cache.refresh(kit.records);
    assertEquals(NOW + 1, Records.numberIn(kit.records.rows.get(row), "bound_ms"));
    kit.records.rows.remove(row);
    at(NOW + HOUR);
    long newest = NOW + HOUR;
    kit.records.put("metadata:transactions/image", Images.encode(newest, newest, newest, DEAD));
    kit.records.refusesPuts = true;
    cache.refresh(kit.records);
    kit.records.refusesPuts = false;
    cache.refresh(kit.records);
    assertEquals(NOW + HOUR, Records.numberIn(kit.records.rows.get(row), "bound_ms"));
  }
}
