package io.tms.hbase;

import java.io.IOException;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import org.apache.hadoop.hbase.client.Connection;
import org.apache.hadoop.hbase.util.EnvironmentEdgeManager;

/**
 * The metadata of one store in a region server: read in the background by one thread, shared by all
 * its regions, from the first that opens to the last that closes.
 *
 * <p>Flushes, compactions and scans take the newest {@link Metadata} as it is and never wait. Only
 * the thread talks to HBase, with a connection of its own that gives up soon; so a server that
 * holds the table of records itself starts and stops without waiting for itself.
 */
final class TopicCache implements Runnable {
  private final String namespace;
  private final Set<RegionNotes> regions = ConcurrentHashMap.newKeySet();
  private final CountDownLatch stopped = new CountDownLatch(1);
  private final RegionMetrics metrics;
  private final Warnings warnings;
  private final MetadataReader reader;
  private final Thread thread;

  private volatile Metadata metadata;
  private TableRecords records; // the thread's own

  private TopicCache(String namespace, RegionMetrics metrics) {
    this.namespace = namespace;
    this.metrics = metrics;
    this.warnings = new Warnings(Long.MAX_VALUE);
    this.reader =
        new MetadataReader(
            warnings,
            () -> TimeUnit.NANOSECONDS.toMillis(System.nanoTime()),
            most -> ThreadLocalRandom.current().nextInt(most));
    this.thread = new Thread(this, "tms-topic-cache-" + namespace);
    thread.setDaemon(true);
  }

  /** The cache of the region's store; the first region makes it. */
  static TopicCache join(RegionNotes region, RegionMetrics metrics) {
    ConcurrentMap<String, Object> shared = region.env().getSharedData();
    String namespace = region.settings().namespace;
    return (TopicCache)
        shared.compute(
            name(namespace),
            (name, known) -> {
              TopicCache cache = (TopicCache) known;
              if (cache == null) {
                cache = new TopicCache(namespace, metrics);
                metrics.showAge(namespace, cache::ageMs);
              }
              cache.add(region);
              return cache;
            });
  }

  /** The last region that leaves ends the thread, without waiting for it. */
  void leave(RegionNotes region) {
    region
        .env()
        .getSharedData()
        .computeIfPresent(
            name(namespace),
            (name, known) -> {
              if (known != this || !remove(region)) {
                return known;
              }
              return null;
            });
  }

  /** HBase keeps what is shared by the name of the class; a newer jar's class has the same name. */
  private static String name(String namespace) {
    int loader = System.identityHashCode(TopicCache.class.getClassLoader());
    return "topic cache " + Version.NAME + " " + Integer.toHexString(loader) + " " + namespace;
  }

  private void add(RegionNotes region) {
    boolean first = regions.isEmpty();
    regions.add(region);
    warnings.every(region.settings().warnMs);
    if (first) {
      thread.start();
    }
  }

  private boolean remove(RegionNotes region) {
    regions.remove(region);
    if (!regions.isEmpty()) {
      return false;
    }
    stopped.countDown();
    thread.interrupt();
    return true;
  }

  /** The newest that was read; null when nothing ever was. */
  Metadata metadata() {
    return metadata;
  }

  void publish(Metadata newest) {
    metadata = newest;
  }

  Warnings warnings() {
    return warnings;
  }

  /** The thread, for those who want to see it end. */
  Thread thread() {
    return thread;
  }

  private long ageMs() {
    Metadata known = metadata;
    return known == null ? -1 : EnvironmentEdgeManager.currentTime() - known.readAtMs;
  }

  @Override
  public void run() {
    try {
      do {
        refresh();
      } while (!stopped.await(pauseMs(), TimeUnit.MILLISECONDS));
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
    } finally {
      disconnect();
    }
  }

  private void refresh() {
    try {
      connect();
      refresh(records);
    } catch (IOException | RuntimeException | LinkageError e) {
      failed(e);
    }
  }

  /** Reads what changed and writes what is to be noted; on an error what was known stays. */
  void refresh(RecordSource source) {
    try {
      try {
        publish(reader.read(source, EnvironmentEdgeManager.currentTime()));
      } finally {
        metrics.refreshRead(reader.rowsRead());
      }
      for (RegionNotes region : regions) {
        writeNote(source, region);
      }
    } catch (IOException | RuntimeException | LinkageError e) {
      failed(e);
    }
  }

  private void failed(Throwable error) {
    if (stopped.getCount() > 0) {
      metrics.refreshFailed();
      warnings.warn(
          "tms_refresh_failed, nothing new is cleaned until it works: of", namespace, error);
    }
  }

  private void writeNote(RecordSource source, RegionNotes region) throws IOException {
    long boundMs = region.due(metadata.image);
    if (boundMs <= 0) {
      return;
    }
    byte[] known = source.get(region.row());
    Long knownMs = known == null ? null : Records.numberIn(known, "bound_ms");
    if (knownMs != null && knownMs >= boundMs) {
      region.noted(knownMs); // by the server that had the region before
    } else {
      source.put(region.row(), region.note(boundMs));
      region.noted(boundMs);
    }
  }

  private void connect() throws IOException {
    if (records != null && !records.isClosed()) {
      return;
    }
    disconnect();
    for (RegionNotes region : regions) {
      Connection connection =
          region.env().createConnection(TableRecords.impatient(region.env().getConfiguration()));
      if (connection != null) {
        records = new TableRecords(connection, namespace);
        return;
      }
    }
    throw new IOException("There is no server to connect to.");
  }

  private void disconnect() {
    if (records != null) {
      try {
        records.close();
      } catch (IOException | RuntimeException e) {
        warnings.warn("tms_disconnect_failed: of", namespace, e);
      }
      records = null;
    }
  }

  private long pauseMs() {
    long leastMs = Long.MAX_VALUE;
    for (RegionNotes region : regions) {
      leastMs = Math.min(leastMs, region.settings().refreshMs);
    }
    // Servers that were started together do not go on together.
    return leastMs - ThreadLocalRandom.current().nextLong(leastMs / 5 + 1);
  }
}
