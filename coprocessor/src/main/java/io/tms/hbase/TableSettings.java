package io.tms.hbase;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import org.apache.hadoop.hbase.HConstants;
import org.apache.hadoop.hbase.client.ColumnFamilyDescriptor;
import org.apache.hadoop.hbase.client.TableDescriptor;
import org.apache.hadoop.hbase.util.Bytes;

/**
 * The settings in a table's attributes; read once when a region opens, since changing an attribute
 * reopens the regions. A wrong value is named in {@link #mistakes} and does the least.
 */
final class TableSettings {
  static final byte[] FAMILY = Bytes.toBytes("m");
  static final byte[] BLOCK = Bytes.toBytes("b");

  private static final String TTL = "tms.ttl";
  private static final String ISOLATION = "tms.isolation";
  private static final String ENABLED = "tms.enabled";
  private static final String REFRESH = "tms.refresh.ms";
  private static final String WARN = "tms.warn.ms";
  private static final String ALL = "uncommitted";
  private static final long REFRESH_MS = 10_000;
  private static final long REFRESH_MS_MIN = 10;
  private static final long WARN_MS = 60_000;

  final String namespace;

  /** The table without its namespace. */
  final String table;

  final boolean messages;
  final boolean payloads;

  /** True if rows may be dropped or hidden. */
  final boolean enabled;

  /** The isolation of readers that ask for none. */
  final String isolation;

  /**
   * The retention of topics that are unknown or have none of their own; negative: the table does
   * not say. HBase's own time to live counts if there is no other.
   */
  final long ttlMs;

  final long refreshMs;
  final long warnMs;
  private final int families;
  private final List<String> mistakes = new ArrayList<>();

  TableSettings(TableDescriptor descriptor) {
    namespace = descriptor.getTableName().getNamespaceAsString();
    table = descriptor.getTableName().getQualifierAsString();
    families = descriptor.getColumnFamilyCount();
    messages = table.equals("messages");
    payloads = table.equals("payloads");
    if (!messages && !payloads) {
      mistakes.add("the table is neither messages nor payloads: the coprocessor does nothing here");
    }
    enabled = isEnabled(descriptor.getValue(ENABLED)) && (messages || payloads);
    String value = descriptor.getValue(ISOLATION);
    isolation = value == null ? ALL : value;
    ttlMs = ttl(descriptor);
    refreshMs = number(descriptor, REFRESH, REFRESH_MS_MIN, REFRESH_MS);
    warnMs = number(descriptor, WARN, 0, WARN_MS);
  }

  /**
   * True if a table certainly shows every row to readers that ask for nothing. It reads no more
   * than it must, for when nothing else works.
   */
  static boolean showsAll(TableDescriptor descriptor) {
    String isolation = descriptor.getValue(ISOLATION);
    String enabled = descriptor.getValue(ENABLED);
    return isolation == null
        || isolation.equals(ALL)
        || (enabled != null && !enabled.equalsIgnoreCase("true"))
        || !descriptor.getTableName().getQualifierAsString().equals("messages");
  }

  private long ttl(TableDescriptor descriptor) {
    if (descriptor.getValue(TTL) != null) {
      return number(descriptor, TTL, 0, -1);
    }
    ColumnFamilyDescriptor family = descriptor.getColumnFamily(FAMILY);
    int seconds = family == null ? HConstants.FOREVER : family.getTimeToLive();
    return seconds == HConstants.FOREVER || seconds <= 0 ? -1 : seconds * 1000L;
  }

  private boolean isEnabled(String value) {
    if (value != null && !value.equalsIgnoreCase("true") && !value.equalsIgnoreCase("false")) {
      mistakes.add(ENABLED + " is true or false, not " + value + ": taken as false");
    }
    return value == null || value.equalsIgnoreCase("true");
  }

  private long number(TableDescriptor descriptor, String name, long least, long otherwise) {
    String value = descriptor.getValue(name);
    if (value == null) {
      return otherwise;
    }
    try {
      long number = Long.parseLong(value);
      if (number >= least) {
        return number;
      }
    } catch (NumberFormatException e) {
      // named below
    }
    mistakes.add(name + " is a number of ms from " + least + ", not " + value + ": not used");
    return otherwise;
  }

  /** The wrong attributes, for the log. */
  List<String> mistakes() {
    return Collections.unmodifiableList(mistakes);
  }

  /** The table as people name it. */
  String fullTable() {
    return namespace + ":" + table;
  }

  /** True if the table has only the family of TMS. */
  boolean isOneFamily() {
    return families == 1;
  }
}
