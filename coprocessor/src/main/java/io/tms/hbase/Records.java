package io.tms.hbase;

import java.io.IOException;
import java.io.StringReader;
import java.nio.charset.StandardCharsets;
import org.apache.hbase.thirdparty.com.google.gson.stream.JsonReader;
import org.apache.hbase.thirdparty.com.google.gson.stream.JsonToken;

/**
 * Parses the records of a store: JSON, by the parser that HBase brings along. Fields that are not
 * known here are ignored; a record that is not as it should be is an error or is marked unsure,
 * never guessed at.
 */
final class Records {
  static final long UID_MAX = 0xFFFF_FFFFL;
  static final int PARTITION_MAX = 0xFFFF;

  private static final int SEQUENCE_MAX = 0xFFFF;

  private Records() {}

  /** Adds a topic; one of which not even the uid can be read makes every unknown uid unsure. */
  static void topic(byte[] json, Topics.Builder to) {
    long uid = -1;
    long retentionMs = Topics.UNSURE;
    long defaultMs = Topics.NONE;
    try (JsonReader in = reader(json)) {
      in.beginObject();
      while (in.hasNext()) {
        String name = in.nextName();
        if (name.equals("uid")) {
          uid = number(in);
        } else if (name.equals("retention_ms")) {
          retentionMs = retention(in);
        } else if (name.equals("retention_is_default")) {
          defaultMs = isDefault(in);
        } else {
          in.skipValue();
        }
      }
      end(in);
    } catch (IOException | IllegalStateException | NumberFormatException e) {
      uid = -1;
    }
    if (uid < 0 || uid > UID_MAX) {
      to.addUnreadable();
    } else {
      to.add(
          uid, defaultMs == Topics.NONE || retentionMs == Topics.UNSURE ? retentionMs : defaultMs);
    }
  }

  /** {@code DEFAULT} when the topic has no retention of its own, {@code NONE} when it has. */
  private static long isDefault(JsonReader in) throws IOException {
    if (in.peek() != JsonToken.BOOLEAN) {
      in.skipValue();
      return Topics.UNSURE;
    }
    return in.nextBoolean() ? Topics.DEFAULT : Topics.NONE;
  }

  private static long retention(JsonReader in) throws IOException {
    JsonToken kind = in.peek();
    if (kind == JsonToken.NULL) {
      in.nextNull();
      return Topics.FOREVER;
    }
    if (kind != JsonToken.NUMBER) {
      in.skipValue();
      return Topics.UNSURE;
    }
    try {
      long ms = Long.parseLong(in.nextString());
      return ms > 0 ? ms : Topics.UNSURE;
    } catch (NumberFormatException e) {
      return Topics.UNSURE;
    }
  }

  /** Adds a partition; one that cannot be parsed is added as unsure. */
  static void partition(long place, byte[] json, Partitions.Builder to) throws Malformed {
    to.begin(place);
    Longs floor = new Longs();
    Longs segments = null;
    try (JsonReader in = reader(json)) {
      in.beginObject();
      while (in.hasNext()) {
        String name = in.nextName();
        if (name.equals("floor")) {
          blockKey(in, floor);
        } else if (name.equals("segments")) {
          segments = segments(in);
        } else {
          in.skipValue();
        }
      }
      end(in);
    } catch (IOException | IllegalStateException | NumberFormatException e) {
      return;
    }
    if (segments == null || floor.size() > 2 || !ascends(segments)) {
      return;
    }
    long[] first = floor.size() == 0 ? new long[2] : floor.toArray();
    to.floor(first[0], first[1]);
    long[] words = segments.toArray();
    for (int i = 0; i < words.length; i += 3) {
      to.segment(words[i], words[i + 1], words[i + 2]);
    }
  }

  private static Longs segments(JsonReader in) throws IOException {
    Longs found = new Longs();
    in.beginArray();
    while (in.hasNext()) {
      long number = -1;
      Longs last = new Longs();
      in.beginObject();
      while (in.hasNext()) {
        String name = in.nextName();
        if (name.equals("number")) {
          number = number(in);
        } else if (name.equals("last") && in.peek() != JsonToken.NULL) {
          blockKey(in, last);
        } else {
          in.skipValue();
        }
      }
      in.endObject();
      if (number < 0 || last.size() > 2) {
        throw new Malformed("a segment without a number, or with two ends");
      }
      found.add(number);
      found.addAll(last.size() == 0 ? new long[] {0, Partitions.NOT_SEALED} : last.toArray(), 0, 2);
    }
    in.endArray();
    return found;
  }

  private static boolean ascends(Longs segments) {
    long[] words = segments.toArray();
    for (int i = 3; i < words.length; i += 3) {
      if (words[i] <= words[i - 3]) {
        return false;
      }
    }
    return true;
  }

  private static void blockKey(JsonReader in, Longs to) throws IOException {
    in.beginArray();
    long timeMs = number(in);
    long sequence = number(in);
    in.endArray();
    if (timeMs < 0 || sequence < 0 || sequence > SEQUENCE_MAX) {
      throw new Malformed("no key of a block");
    }
    to.add(timeMs);
    to.add(sequence);
  }

  /** The retention of topics that have none of their own, as TMS goes by it. */
  static long defaultRetention(byte[] text) throws Malformed {
    String said = new String(text, StandardCharsets.US_ASCII);
    try {
      long ms = Long.parseLong(said);
      if (ms > 0) {
        return ms;
      }
    } catch (NumberFormatException e) {
      // named below
    }
    throw new Malformed("retention/default is no number of ms: " + said);
  }

  /** The time by which retention is judged. */
  static long clock(byte[] text) throws Malformed {
    String digits = new String(text, StandardCharsets.US_ASCII);
    try {
      long ms = Long.parseLong(digits);
      if (ms >= 0) {
        return ms;
      }
    } catch (NumberFormatException e) {
      // named below
    }
    throw new Malformed("clock/retention is no time: " + digits);
  }

  /** The number {@code name} of an object; null when there is none or it is no object. */
  static Long numberIn(byte[] json, String name) {
    Long found = null;
    try (JsonReader in = reader(json)) {
      in.beginObject();
      while (in.hasNext()) {
        if (in.nextName().equals(name)) {
          found = number(in);
        } else {
          in.skipValue();
        }
      }
      end(in);
      return found;
    } catch (IOException | IllegalStateException | NumberFormatException e) {
      return null;
    }
  }

  private static long number(JsonReader in) throws IOException {
    if (in.peek() != JsonToken.NUMBER) { // the parser would take a text as well
      throw new Malformed("no number at " + in.getPath());
    }
    String text = in.nextString();
    return Long.parseLong(text); // and 1.0
  }

  private static JsonReader reader(byte[] json) {
    return new JsonReader(new StringReader(new String(json, StandardCharsets.UTF_8)));
  }

  private static void end(JsonReader in) throws IOException {
    in.endObject();
    if (in.peek() != JsonToken.END_DOCUMENT) {
      throw new Malformed("the record goes on behind its end");
    }
  }
}
