package io.tms.hbase;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.hbase.Cell;
import org.apache.hadoop.hbase.CellUtil;
import org.apache.hadoop.hbase.HBaseTestingUtility;
import org.apache.hadoop.hbase.TableName;
import org.apache.hadoop.hbase.client.ColumnFamilyDescriptorBuilder;
import org.apache.hadoop.hbase.client.Put;
import org.apache.hadoop.hbase.client.RegionInfo;
import org.apache.hadoop.hbase.client.RegionInfoBuilder;
import org.apache.hadoop.hbase.client.Scan;
import org.apache.hadoop.hbase.client.TableDescriptor;
import org.apache.hadoop.hbase.client.TableDescriptorBuilder;
import org.apache.hadoop.hbase.coprocessor.RegionCoprocessorEnvironment;
import org.apache.hadoop.hbase.metrics.Counter;
import org.apache.hadoop.hbase.regionserver.HRegion;
import org.apache.hadoop.hbase.regionserver.HStore;
import org.apache.hadoop.hbase.regionserver.RegionCoprocessorHost;
import org.apache.hadoop.hbase.regionserver.RegionScanner;
import org.apache.hadoop.hbase.regionserver.Store;
import org.apache.hadoop.hbase.regionserver.compactions.CompactionContext;
import org.apache.hadoop.hbase.regionserver.compactions.CompactionLifeCycleTracker;
import org.apache.hadoop.hbase.regionserver.throttle.NoLimitThroughputController;
import org.apache.hadoop.hbase.util.Bytes;
import org.apache.hadoop.hbase.util.EnvironmentEdgeManager;
import org.apache.hadoop.hbase.util.ManualEnvironmentEdge;
import org.apache.hadoop.hbase.wal.WAL;

/**
 * One real region with the coprocessor on it, without a server: it writes, flushes, compacts and is
 * read in this process, by a clock that the test sets. Metadata is what the test says.
 */
final class RegionKit implements AutoCloseable {
  final ManualEnvironmentEdge clock = new ManualEnvironmentEdge();
  final Vectors.Source records = new Vectors.Source();

  private final HBaseTestingUtility util;
  private final Configuration conf;
  private final RegionInfo info;
  private final TableDescriptor table;
  private final Path root;
  private WAL wal;
  private HRegion region;

  RegionKit(String tableName, Map<String, String> attributes, String... settings)
      throws IOException {
    this(true, tableName, attributes, settings);
  }

  RegionKit(
      boolean withCoprocessor, String tableName, Map<String, String> attributes, String... settings)
      throws IOException {
    clock.setValue(Blocks.NOW);
    EnvironmentEdgeManager.injectEdge(clock);
    util = new HBaseTestingUtility();
    conf = util.getConfiguration();
    conf.setBoolean("hbase.hregion.memstore.mslab.enabled", false);
    for (int i = 0; i < settings.length; i += 2) {
      conf.set(settings[i], settings[i + 1]);
    }
    TableName name = TableName.valueOf("tms", tableName);
    TableDescriptorBuilder builder =
        TableDescriptorBuilder.newBuilder(name)
            .setColumnFamily(
                ColumnFamilyDescriptorBuilder.newBuilder(TableSettings.FAMILY)
                    .setMaxVersions(1)
                    .build())
            .setValue("tms.refresh.ms", "3600000");
    if (withCoprocessor) {
      builder.setCoprocessor(RetentionObserver.class.getName());
    }
    attributes.forEach(builder::setValue);
    table = builder.build();
    info = RegionInfoBuilder.newBuilder(name).build();
    root = util.getDataTestDir(info.getEncodedName());
    open();
  }

  /** A region of messages in place of an earlier one, if there is one; retention time is NOW. */
  static RegionKit ofMessages(RegionKit earlier, Map<String, String> attributes)
      throws IOException {
    if (earlier != null) {
      earlier.close();
    }
    RegionKit kit = new RegionKit("messages", attributes);
    kit.records.text("metadata:clock/retention", Long.toString(Blocks.NOW));
    return kit;
  }

  @SuppressWarnings("deprecation") // initialize() is deprecated for everybody but tests
  private void open() throws IOException {
    Path tableDir = new Path(root, "data");
    wal = HBaseTestingUtility.createWal(conf, root, info);
    FileSystem files = FileSystem.get(root.toUri(), conf);
    files.mkdirs(new Path(tableDir, info.getEncodedName())); // HBase 2.5 does not by itself
    region = HRegion.newHRegion(tableDir, wal, files, conf, info, table, null);
    region.setCoprocessorHost(new RegionCoprocessorHost(region, null, conf));
    region.initialize();
  }

  /** As a move to another server: the region is closed and opened again. */
  void reopen() throws IOException {
    region.close();
    wal.close();
    open();
  }

  HRegion region() {
    return region;
  }

  HStore store() {
    return region.getStore(TableSettings.FAMILY);
  }

  /** Where its files are. */
  java.nio.file.Path storeDirectory() {
    Path directory = region.getRegionFileSystem().getRegionDir();
    return java.nio.file.Path.of(directory.toUri().getPath(), "m");
  }

  RetentionObserver observer() {
    return region.getCoprocessorHost().findCoprocessor(RetentionObserver.class);
  }

  /** Makes known what {@link #records} says now. */
  Metadata publish() throws IOException {
    Metadata read = Vectors.reader().read(records, clock.currentTime());
    observer().cache().publish(read);
    return read;
  }

  /** Ends a partition's segment, long after everything that tests write to it; the next is open. */
  void seal(long uid, int partition, int segment) {
    String row = String.format("metadata:partition/%08x/%05d", uid, partition);
    records.text(row, Blocks.sealed(segment, Blocks.NOW + 400 * Blocks.DAY));
  }

  void put(Put put) throws IOException {
    region.put(put);
  }

  void flush() throws IOException {
    region.flush(true);
  }

  /** A major compaction of all files, or a minor one if there is one to be done. */
  void compact(boolean major) throws IOException {
    HStore store = store();
    if (major) {
      store.triggerMajorCompaction();
    }
    int priority = major ? Store.PRIORITY_USER : Store.NO_PRIORITY;
    Optional<CompactionContext> chosen =
        store.requestCompaction(priority, CompactionLifeCycleTracker.DUMMY, null);
    if (chosen.isPresent()) {
      region.compact(chosen.get(), store, NoLimitThroughputController.INSTANCE, null);
    }
  }

  /** All rows as they are stored, with the flags of their blocks. */
  Map<String, Integer> rows() throws IOException {
    Map<String, Integer> found = new TreeMap<>();
    for (List<Cell> row : read(new Scan(), false)) {
      Cell first = row.get(0);
      byte[] value = CellUtil.cloneValue(first);
      found.put(Bytes.toString(CellUtil.cloneRow(first)), value.length > 5 ? (int) value[5] : -1);
    }
    return found;
  }

  /** The rows that a reader gets. */
  List<List<Cell>> read(Scan scan, boolean asClient) throws IOException {
    if (asClient) {
      region.getCoprocessorHost().preScannerOpen(scan);
    }
    List<List<Cell>> found = new ArrayList<>();
    try (RegionScanner scanner = region.getScanner(scan)) {
      boolean more;
      do {
        List<Cell> row = new ArrayList<>();
        more = scanner.next(row);
        if (!row.isEmpty()) {
          found.add(row);
        }
      } while (more);
    }
    return found;
  }

  Set<String> rowsRead(Scan scan) throws IOException {
    Set<String> found = new TreeSet<>();
    for (List<Cell> row : read(scan, true)) {
      found.add(Bytes.toString(CellUtil.cloneRow(row.get(0))));
    }
    return found;
  }

  long counted(String name) {
    RegionCoprocessorEnvironment env =
        region.getCoprocessorHost().findCoprocessorEnvironment(RetentionObserver.class.getName());
    return ((Counter) env.getMetricRegistryForRegionServer().get(name).orElseThrow()).getCount();
  }

  @Override
  public void close() throws IOException {
    region.close();
    wal.close();
    util.cleanupTestDir();
    EnvironmentEdgeManager.reset();
  }
}
