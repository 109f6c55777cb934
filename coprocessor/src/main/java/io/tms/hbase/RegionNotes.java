package io.tms.hbase;

import java.util.Collection;
import java.util.Collections;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.hadoop.hbase.client.RegionInfo;
import org.apache.hadoop.hbase.client.RegionReplicaUtil;
import org.apache.hadoop.hbase.coprocessor.RegionCoprocessorEnvironment;
import org.apache.hadoop.hbase.regionserver.Region;
import org.apache.hadoop.hbase.regionserver.Store;
import org.apache.hadoop.hbase.regionserver.StoreFile;
import org.apache.hadoop.hbase.regionserver.compactions.CompactionRequest;
import org.apache.hadoop.hbase.util.Bytes;
import org.apache.hadoop.hbase.util.EnvironmentEdgeManager;

/**
 * Finds out for one region up to which time it is clean: of a transaction that was invalid, and
 * wrote its last, before {@code bound_ms}, the region holds nothing. From these notes follows what
 * may leave the list of invalid transactions; a bound that is too high makes data visible that
 * never was committed (TEPHRA-224), one that is too low only delays.
 *
 * <p>The bound of a major compaction is the lesser of
 *
 * <ul>
 *   <li>the time of the image of transactions that it used, and
 *   <li>the latest time before which everything that was written is known to be in the files that
 *       it read: the start of a flush that ended before, the opening of the region, or a moment at
 *       which nothing was in memory. What is still in memory, it never saw.
 * </ul>
 *
 * <p>It counts once the compaction's files have replaced those that it read; HBase calls {@code
 * postCompact} before that, so the background thread looks by itself. A region that holds nothing
 * at all, neither in memory nor in files, is clean up to now.
 *
 * <p>A region that closes looks empty as well. So whatever was seen of its files counts only if the
 * region is available afterwards.
 */
final class RegionNotes {
  /** A region that is empty all the time is not noted each time. */
  static final long STEP_MS = 600_000;

  private static final int FLUSHES_MAX = 64;

  private final RegionCoprocessorEnvironment env;
  private final TableSettings settings;
  private final long createdMs = EnvironmentEdgeManager.currentTime();
  private final ConcurrentHashMap<Thread, Long> flushes = new ConcurrentHashMap<>();

  private volatile boolean open;
  private volatile long settledMs; // everything that was written before is in files
  private volatile Cleaning cleaning; // the newest major compaction
  private volatile long cleanMs; // by a major compaction
  private volatile long notedMs;

  RegionNotes(RegionCoprocessorEnvironment env, TableSettings settings) {
    this.env = env;
    this.settings = settings;
  }

  /** The region is open: what was in logs is in files now, and nothing was written since. */
  void opened() {
    settledMs = createdMs;
    open = true;
  }

  /** A flush begins, in this thread. It may turn out that another one is under way. */
  void flushStarts() {
    if (flushes.size() >= FLUSHES_MAX) {
      flushes.clear(); // the flushes under way are not counted, which only delays
    }
    flushes.put(Thread.currentThread(), EnvironmentEdgeManager.currentTime());
  }

  /** The flush that began in this thread is complete. */
  void flushEnded() {
    Long startMs = flushes.remove(Thread.currentThread());
    if (startMs != null && settings.isOneFamily()) { // else not all families were flushed
      settled(startMs);
    }
  }

  private synchronized void settled(long ms) {
    settledMs = Math.max(settledMs, ms);
  }

  /** A major compaction begins. */
  void cleaningStarts(
      Store store, CompactionRequest request, TransactionImage image, RetentionScanner scanner) {
    cleaning = null;
    if (!open || image == null) {
      return;
    }
    lookIntoMemory();
    long boundMs = Math.min(image.timeMs, settledMs);
    Collection<? extends StoreFile> read = request.getFiles();
    if (read.containsAll(store.getStorefiles())) { // none was flushed since they were selected
      cleaning = new Cleaning(store, read, boundMs, scanner);
    }
  }

  private synchronized boolean lookIntoMemory() {
    long nowMs = EnvironmentEdgeManager.currentTime();
    if (nowMs < settledMs) { // the clock went back: until the next flush nothing is certain
      settledMs = 0;
    }
    boolean empty = env.getRegion().getMemStoreDataSize() == 0;
    if (empty) {
      settled(nowMs);
    }
    return empty;
  }

  /** The value to note now; 0 if there is none. */
  long due(TransactionImage newest) {
    RegionInfo info = env.getRegionInfo();
    if (!open || !settings.enabled || !RegionReplicaUtil.isDefaultReplica(info)) {
      return 0;
    }
    Cleaning last = cleaning;
    if (last != null && last.isDone() && isAvailable()) {
      if (cleaning == last) {
        cleaning = null;
      }
      cleanMs = Math.max(cleanMs, last.boundMs);
    }
    if (cleanMs > notedMs) {
      return cleanMs;
    }
    if (newest == null || !isEmpty()) {
      return 0;
    }
    long boundMs = Math.min(newest.timeMs, settledMs);
    return boundMs >= notedMs + STEP_MS && isAvailable() ? boundMs : 0;
  }

  private boolean isEmpty() {
    if (!lookIntoMemory()) { // first: what a flush takes from memory is in a file then
      return false;
    }
    for (Store store : env.getRegion().getStores()) {
      for (StoreFile file : store.getStorefiles()) {
        if (file.getFirstKey().isPresent()) {
          return false;
        }
      }
    }
    return true;
  }

  private boolean isAvailable() {
    Region region = env.getRegion();
    return open && !region.isClosing() && !region.isClosed();
  }

  /** The region closes: what is seen of it from now on means nothing. */
  void closed() {
    open = false;
  }

  /** This bound, or a higher one, is in the table of records. */
  void noted(long boundMs) {
    notedMs = Math.max(notedMs, boundMs);
  }

  /** The row of the note. */
  String row() {
    return "!region/" + settings.table + "/" + env.getRegionInfo().getEncodedName();
  }

  /** The note. */
  byte[] note(long boundMs) {
    RegionInfo info = env.getRegionInfo();
    return Bytes.toBytes(
        new Json()
            .text("table", settings.table)
            .text("start", Bytes.toStringBinary(info.getStartKey()))
            .text("end", Bytes.toStringBinary(info.getEndKey()))
            .number("bound_ms", boundMs)
            .number("noted_ms", EnvironmentEdgeManager.currentTime())
            .text("version", Version.NAME)
            .text("server", String.valueOf(env.getServerName()))
            .end());
  }

  RegionCoprocessorEnvironment env() {
    return env;
  }

  TableSettings settings() {
    return settings;
  }

  /** A major compaction under way. */
  private static final class Cleaning {
    private final Store store;
    private final Collection<? extends StoreFile> read;
    private final long boundMs;
    private final RetentionScanner scanner;

    Cleaning(
        Store store, Collection<? extends StoreFile> read, long boundMs, RetentionScanner scanner) {
      this.store = store;
      this.read = read;
      this.boundMs = boundMs;
      this.scanner = scanner;
    }

    /** True if it judged every row for certain, and the files that it read are no longer in use. */
    boolean isDone() {
      return scanner.isCertain() && Collections.disjoint(store.getStorefiles(), read);
    }
  }
}
