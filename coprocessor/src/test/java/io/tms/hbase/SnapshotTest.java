package io.tms.hbase;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Arrays;
import java.util.List;
import java.util.Map;
import org.apache.hbase.thirdparty.com.google.gson.JsonElement;
import org.apache.hbase.thirdparty.com.google.gson.JsonObject;
import org.junit.jupiter.api.Test;

/** Snapshots and images are read as the vectors say; broken ones are refused. */
class SnapshotTest {
  private static final JsonObject SNAPSHOTS = Vectors.load("snapshots");

  @Test
  void aSnapshotShowsWhatTheVectorsSay() throws Malformed {
    for (JsonElement element : SNAPSHOTS.getAsJsonArray("snapshots")) {
      JsonObject one = element.getAsJsonObject();
      Snapshot snapshot = SnapshotCodec.decode(Vectors.hex(one.get("hex")));
      for (long pointer : Vectors.longs(one.get("visible"))) {
        assertTrue(snapshot.isVisible(pointer), one.get("name") + " " + pointer);
      }
      for (long pointer : Vectors.longs(one.get("skipped"))) {
        assertFalse(snapshot.isVisible(pointer), one.get("name") + " " + pointer);
        assertTrue(snapshot.isInvalid(pointer), one.get("name") + " " + pointer);
      }
      for (long pointer : Vectors.longs(one.get("open"))) {
        assertFalse(snapshot.isVisible(pointer), one.get("name") + " " + pointer);
        assertFalse(snapshot.isInvalid(pointer), one.get("name") + " " + pointer);
      }
    }
  }

  @Test
  void listsThatAreNotInOrderAreSorted() throws Malformed {
    byte[] raw = Vectors.hex(snapshot("invalid and in progress").get("hex"));
    byte[] turned = raw.clone(); // the two pointers of the list of field 3, exchanged
    int list = 2 * (3 + 8) + 3 + 5;
    System.arraycopy(raw, list, turned, list + 8, 8);
    System.arraycopy(raw, list + 8, turned, list, 8);
    assertFalse(Arrays.equals(raw, turned));
    for (long pointer : Vectors.longs(snapshot("invalid and in progress").get("skipped"))) {
      assertTrue(SnapshotCodec.decode(turned).isInvalid(pointer));
    }
  }

  private static JsonObject snapshot(String name) {
    for (JsonElement one : SNAPSHOTS.getAsJsonArray("snapshots")) {
      if (one.getAsJsonObject().get("name").getAsString().equals(name)) {
        return one.getAsJsonObject();
      }
    }
    throw new AssertionError(name);
  }

  private interface Decoder {
    Object decode(byte[] raw) throws Malformed;
  }

  private static void assertAllRefused(String vectors, Decoder decoder) {
    for (Map.Entry<String, JsonElement> one : SNAPSHOTS.getAsJsonObject(vectors).entrySet()) {
      byte[] raw = Vectors.hex(one.getValue());
      assertThrows(Malformed.class, () -> decoder.decode(raw), one.getKey());
    }
  }

  @Test
  void bytesThatAreNoSnapshotAreRefused() {
    assertAllRefused("refused", SnapshotCodec::decode);
  }

  @Test
  void everyTruncationOfASnapshotIsRefusedAndNoFlippedBitDoesAnythingElse() throws Malformed {
    byte[] raw = Vectors.hex(snapshot("checkpoints").get("hex"));
    for (int length = 0; length < raw.length; length++) {
      byte[] cut = Arrays.copyOf(raw, length);
      assertThrows(Malformed.class, () -> SnapshotCodec.decode(cut), "length " + length);
    }
    for (int bit = 0; bit < raw.length * 8; bit++) {
      byte[] flipped = raw.clone();
      flipped[bit / 8] ^= (byte) (1 << bit % 8);
      try {
        SnapshotCodec.decode(flipped);
      } catch (Malformed expected) {
        // the only thing that may come out besides another snapshot
      }
    }
  }

  @Test
  void anImageIsReadAsTheVectorsSay() throws Malformed {
    for (JsonElement element : SNAPSHOTS.getAsJsonArray("images")) {
      JsonObject one = element.getAsJsonObject();
      TransactionImage image = TransactionImage.decode(Vectors.hex(one.get("hex")));
      assertEquals(one.get("time_ms").getAsLong(), image.timeMs);
      assertEquals(one.get("write_pointer").getAsLong(), image.writePointer);
      List<Long> invalid = Vectors.longs(one.get("invalid"));
      List<Long> inProgress = Vectors.longs(one.get("in_progress"));
      long readPointer = one.get("read_pointer").getAsLong();
      assertTrue(inProgress.stream().allMatch(image.committed::isInProgress));
      for (long pointer : invalid) {
        assertTrue(image.committed.isInvalid(pointer));
        assertFalse(image.committed.isVisible(pointer));
        assertTrue(image.neverCommits(pointer) || inProgress.contains(pointer));
      }
      List<Long> lost = Vectors.longs(one.get("lost"));
      for (int i = 0; i < lost.size(); i += 2) {
        assertFalse(image.neverCommits(lost.get(i) - 1));
        assertTrue(image.neverCommits(lost.get(i)));
        assertTrue(image.neverCommits(lost.get(i + 1) - 1));
        assertFalse(image.neverCommits(lost.get(i + 1)));
      }
      boolean shown = !invalid.contains(readPointer) && !inProgress.contains(readPointer);
      assertEquals(shown, image.committed.isVisible(readPointer));
      assertFalse(image.committed.isVisible(readPointer + 1));
      JsonObject fates = one.getAsJsonObject("fates");
      for (long pointer : Vectors.longs(fates.get("skipped"))) {
        assertTrue(image.neverCommits(pointer));
      }
      for (long pointer : Vectors.longs(fates.get("open"))) {
        assertFalse(image.neverCommits(pointer));
        assertTrue(pointer > image.writePointer || image.committed.isInProgress(pointer));
      }
      for (long pointer : Vectors.longs(fates.get("visible"))) {
        assertFalse(image.neverCommits(pointer));
        assertEquals(pointer <= readPointer, image.committed.isVisible(pointer));
      }
    }
  }

  @Test
  void brokenImagesAreRefused() {
    assertAllRefused("refused_images", TransactionImage::decode);
  }

  @Test
  void everyTruncationOfAnImageIsRefused() {
    byte[] raw =
        Vectors.hex(SNAPSHOTS.getAsJsonArray("images").get(2).getAsJsonObject().get("hex"));
    for (int length = 0; length < raw.length; length++) {
      byte[] cut = Arrays.copyOf(raw, length);
      assertThrows(Malformed.class, () -> TransactionImage.decode(cut), "length " + length);
    }
  }
}
