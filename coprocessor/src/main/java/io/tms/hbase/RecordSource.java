package io.tms.hbase;

import java.io.Closeable;
import java.io.IOException;

/** The table of small records, as much of it as is read and written here. */
interface RecordSource extends Closeable {
  /** The value of a row, null when there is none. */
  byte[] get(String row) throws IOException;

  /**
   * All rows that begin with these characters, in order, and that were written at or after a time.
   */
  void scan(String prefix, long sinceMs, Rows rows) throws IOException;

  void put(String row, byte[] value) throws IOException;

  /** Takes rows. */
  interface Rows {
    /** Takes one, by its whole row. */
    void row(String row, byte[] value) throws IOException;
  }
}
