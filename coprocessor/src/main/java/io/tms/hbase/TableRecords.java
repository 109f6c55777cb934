package io.tms.hbase;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hbase.Cell;
import org.apache.hadoop.hbase.CellUtil;
import org.apache.hadoop.hbase.TableName;
import org.apache.hadoop.hbase.client.Connection;
import org.apache.hadoop.hbase.client.Get;
import org.apache.hadoop.hbase.client.Put;
import org.apache.hadoop.hbase.client.Result;
import org.apache.hadoop.hbase.client.ResultScanner;
import org.apache.hadoop.hbase.client.Scan;
import org.apache.hadoop.hbase.client.Table;
import org.apache.hadoop.hbase.util.Bytes;

/** The records in HBase, by a connection of its own that gives up soon. */
final class TableRecords implements RecordSource {
  private static final byte[] VALUE = Bytes.toBytes("v");
  private static final int ROWS_PER_CALL = 1_000;
  private static final long BYTES_PER_CALL = 2 << 20;

  private final Connection connection;
  private final TableName name;

  TableRecords(Connection connection, String namespace) {
    this.connection = connection;
    this.name = TableName.valueOf(namespace, "metadata");
  }

  /** Short time-outs: the stop of a server does not wait long for this thread. */
  static Configuration impatient(Configuration from) {
    Configuration conf = new Configuration(from);
    conf.setInt("hbase.client.retries.number", 2);
    conf.setInt("hbase.client.pause", 100);
    conf.setInt("hbase.rpc.timeout", 5_000);
    conf.setInt("hbase.rpc.read.timeout", 5_000);
    conf.setInt("hbase.rpc.write.timeout", 5_000);
    conf.setInt("hbase.client.operation.timeout", 10_000);
    conf.setInt("hbase.client.meta.operation.timeout", 10_000);
    conf.setInt("hbase.client.scanner.timeout.period", 10_000);
    return conf;
  }

  boolean isClosed() {
    return connection.isClosed() || connection.isAborted();
  }

  @Override
  public byte[] get(String row) throws IOException {
    try (Table table = connection.getTable(name)) {
      return table
          .get(new Get(bytes(row)).addColumn(TableSettings.FAMILY, VALUE))
          .getValue(TableSettings.FAMILY, VALUE);
    }
  }

  @Override
  public void scan(String prefix, long sinceMs, Rows rows) throws IOException {
    Scan scan =
        new Scan()
            .setStartStopRowForPrefixScan(bytes(prefix))
            .addColumn(TableSettings.FAMILY, VALUE)
            .setTimeRange(sinceMs, Long.MAX_VALUE)
            .setCaching(ROWS_PER_CALL)
            .setMaxResultSize(BYTES_PER_CALL);
    try (Table table = connection.getTable(name);
        ResultScanner found = table.getScanner(scan)) {
      for (Result result = found.next(); result != null; result = found.next()) {
        Cell cell = result.getColumnLatestCell(TableSettings.FAMILY, VALUE);
        String row = new String(result.getRow(), StandardCharsets.ISO_8859_1);
        rows.row(row, CellUtil.cloneValue(cell));
      }
    }
  }

  @Override
  public void put(String row, byte[] value) throws IOException {
    try (Table table = connection.getTable(name)) {
      table.put(new Put(bytes(row)).addColumn(TableSettings.FAMILY, VALUE, value));
    }
  }

  @Override
  public void close() throws IOException {
    connection.close();
  }

  private static byte[] bytes(String row) { // rows are bytes, one character each
    return row.getBytes(StandardCharsets.ISO_8859_1);
  }
}
