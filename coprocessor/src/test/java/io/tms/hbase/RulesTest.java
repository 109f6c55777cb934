package io.tms.hbase;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.DynamicTest.dynamicTest;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.stream.Stream;
import java.util.stream.StreamSupport;
import org.apache.hadoop.hbase.ByteBufferKeyValue;
import org.apache.hadoop.hbase.Cell;
import org.apache.hadoop.hbase.KeyValue;
import org.apache.hadoop.hbase.util.Bytes;
import org.apache.hbase.thirdparty.com.google.gson.JsonArray;
import org.apache.hbase.thirdparty.com.google.gson.JsonElement;
import org.apache.hbase.thirdparty.com.google.gson.JsonObject;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestFactory;

/** Rows are read and judged as the vectors say, which the rules in Python agree with. */
class RulesTest {
  private static final JsonObject HBASE = Vectors.load("hbase");

  @Test
  void rowsAreReadAsTheVectorsSay() {
    for (JsonElement element : HBASE.getAsJsonArray("rows")) {
      JsonObject one = element.getAsJsonObject();
      boolean payloads = one.get("table").getAsString().equals("payloads");
      RowKey key = new RowKey(payloads);
      byte[] row = Bytes.toBytes("xx" + one.get("row").getAsString() + "yy");
      assertTrue(key.read(row, 2, row.length - 4), one.toString());
      assertEquals(one.get("uid").getAsLong(), key.uid());
      assertEquals(one.get("partition").getAsLong(), key.place() & 0xFFFF);
      assertEquals(one.get("time_ms").getAsLong(), key.timeMs());
      assertEquals(one.get("sequence").getAsInt(), key.sequence());
      if (payloads) {
        assertEquals(one.get("pointer").getAsLong(), key.pointer());
      } else {
        assertEquals(one.get("segment").getAsLong(), key.segment());
      }
    }
  }

  @Test
  void whatIsNoRowIsRefusedAlsoAfterAGoodOne() {
    RowKey messages = new RowKey(false);
    byte[] good =
        Bytes.toBytes(
            HBASE.getAsJsonArray("rows").get(1).getAsJsonObject().get("row").getAsString());
    for (JsonElement element : HBASE.getAsJsonArray("refused_rows")) {
      JsonObject one = element.getAsJsonObject();
      byte[] row = Bytes.toBytes(one.get("row").getAsString());
      boolean payloads = one.get("table").getAsString().equals("payloads");
      RowKey key = payloads ? new RowKey(true) : messages;
      assertTrue(messages.read(good, 0, good.length));
      assertFalse(key.read(row, 0, row.length), one.toString());
    }
  }

  @Test
  void aDigitIsOneOfSixteenCharactersAndNothingElse() {
    String good = Blocks.message(0xABCDEF12L, 7, 5, 0x123456789ABL, 0xCDEF);
    RowKey key = new RowKey(false);
    for (int at = 24; at < good.length(); at++) {
      for (int other = 0; other < 256; other++) {
        byte[] row = Bytes.toBytes(good);
        row[at] = (byte) other;
        int digit = "0123456789abcdef".indexOf(other);
        boolean negative = at == 24 && digit > 7;
        assertEquals(digit >= 0 && !negative, key.read(row, 0, row.length), at + " " + other);
        if (digit >= 0 && !negative) {
          String text = Bytes.toString(row);
          assertEquals(Long.parseLong(text.substring(24, 40), 16), key.timeMs());
          assertEquals(Integer.parseInt(text.substring(40), 16), key.sequence());
          assertEquals(0xABCDEF12L, key.uid());
        }
      }
    }
  }

  @TestFactory
  Stream<DynamicTest> rowsBecomeWhatTheVectorsSay() {
    return StreamSupport.stream(HBASE.getAsJsonArray("stores").spliterator(), false)
        .map(JsonElement::getAsJsonObject)
        .map(store -> dynamicTest(store.get("name").getAsString(), () -> check(store)));
  }

  private static void check(JsonObject store) throws IOException {
    long wallMs = store.get("wall_ms").getAsLong();
    long ttlMs = store.get("ttl_ms").isJsonNull() ? -1 : store.get("ttl_ms").getAsLong();
    Metadata metadata = metadataOf(store, wallMs);
    RowRules messages = RowRules.ofStored(metadata, false, wallMs, ttlMs);
    RowRules payloads = RowRules.ofStored(metadata, true, wallMs, ttlMs);
    boolean readable = metadata != null && metadata.image != null;
    Visibility visibility = readable ? Visibility.committed(metadata, wallMs, ttlMs) : null;
    JsonArray cases = store.getAsJsonArray("cases");
    for (JsonElement element : cases) {
      JsonObject one = element.getAsJsonObject();
      String row = one.get("row").getAsString();
      boolean isPayload = one.get("table").getAsString().equals("payloads");
      RowRules rules = isPayload ? payloads : messages;
      String expected = one.get("reason").getAsString();
      Cell cell = Vectors.block(row, Vectors.hex(one.get("header")));
      Reason reason = rules.reasonOf(cell);
      assertEquals(expected, reason.text(), one.toString());
      assertEquals(one.get("dropped").getAsBoolean(), rules.mayDrop(reason), one.toString());
      assertEquals(expected, rules.reasonOf(offHeap(cell)).text(), "in a buffer: " + one);
      if (!isPayload) {
        assertEquals(readable, !one.get("committed").isJsonNull());
        if (readable) {
          assertEquals(
              one.get("committed").getAsBoolean(), visibility.isVisible(cell), one.toString());
        }
      }
    }
  }

  private static Metadata metadataOf(JsonObject store, long wallMs) throws IOException {
    if (store.get("records").isJsonNull()) {
      return null;
    }
    Vectors.Source source = Vectors.Source.of(store.getAsJsonObject("records"));
    return Vectors.reader().read(source, wallMs);
  }

  private static Cell offHeap(Cell cell) {
    KeyValue flat = (KeyValue) cell;
    ByteBuffer buffer = ByteBuffer.allocateDirect(flat.getLength() + 3);
    buffer.position(3);
    buffer.put(flat.getBuffer(), flat.getOffset(), flat.getLength());
    return new ByteBufferKeyValue(buffer, 3, flat.getLength());
  }
}
