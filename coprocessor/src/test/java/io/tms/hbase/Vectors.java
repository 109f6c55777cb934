package io.tms.hbase;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.hadoop.hbase.Cell;
import org.apache.hadoop.hbase.KeyValue;
import org.apache.hadoop.hbase.util.Bytes;
import org.apache.hbase.thirdparty.com.google.gson.JsonElement;
import org.apache.hbase.thirdparty.com.google.gson.JsonObject;
import org.apache.hbase.thirdparty.com.google.gson.JsonParser;

/** The test vectors that the Python side reads as well. */
final class Vectors {
  private Vectors() {}

  static JsonObject load(String name) {
    Path path = Path.of(System.getProperty("tms.vectors", "../vectors"), name + ".json");
    try {
      return JsonParser.parseString(Files.readString(path)).getAsJsonObject();
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
  }

  static byte[] hex(JsonElement text) {
    return Bytes.fromHex(text.getAsString());
  }

  static List<Long> longs(JsonElement array) {
    List<Long> found = new ArrayList<>();
    for (JsonElement one : array.getAsJsonArray()) {
      found.add(one.getAsLong());
    }
    return found;
  }

  /** The cell {@code m:b} of a row. */
  static Cell block(String row, byte[] value) {
    return new KeyValue(
        row.getBytes(StandardCharsets.UTF_8), TableSettings.FAMILY, TableSettings.BLOCK, 1, value);
  }

  /** A reader of records that reads all of them as late as it may, and whose time stands still. */
  static MetadataReader reader() {
    return new MetadataReader(new Warnings(0), () -> 0, most -> most - 1);
  }

  /** The same with other records of partitions. */
  static Metadata with(Metadata good, Partitions partitions) {
    Metadata.Clock clock = new Metadata.Clock(Blocks.NOW, Blocks.NOW, Blocks.NOW);
    return new Metadata(Blocks.NOW, clock, Topics.FOREVER, good.topics, partitions, good.image);
  }

  /** A table of records that is only a map; it may be told to fail. */
  static final class Source implements RecordSource {
    final Map<String, byte[]> rows = new TreeMap<>();
    final Map<String, Long> writtenMs = new TreeMap<>();
    final List<String> asked = new ArrayList<>();
    boolean failing;
    boolean refusesPuts;
    int rowsGiven;
    long nowMs = 1;

    static Source of(JsonObject records) {
      Source source = new Source();
      records.entrySet().forEach(row -> source.put(row.getKey(), hex(row.getValue())));
      return source;
    }

    void text(String row, String text) {
      put(row, Bytes.toBytes(text));
    }

    @Override
    public byte[] get(String row) throws IOException {
      ask(row);
      return rows.get(row);
    }

    @Override
    public void scan(String prefix, long sinceMs, Rows to) throws IOException {
      ask(prefix);
      for (Map.Entry<String, byte[]> row : rows.entrySet()) {
        if (row.getKey().startsWith(prefix) && writtenMs.get(row.getKey()) >= sinceMs) {
          rowsGiven++;
          to.row(row.getKey(), row.getValue());
        }
      }
    }

    private void ask(String what) throws IOException {
      asked.add(what);
      if (failing) {
        throw new IOException("planted");
      }
    }

    @Override
    public void put(String row, byte[] value) {
      if (refusesPuts) {
        throw new IllegalStateException("planted");
      }
      rows.put(row, value);
      writtenMs.put(row, nowMs);
    }

    @Override
    public void close() {}
  }
}
