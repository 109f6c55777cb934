package io.tms.hbase;

import java.io.IOException;
import java.util.Collections;
import java.util.List;
import java.util.Optional;
import org.apache.hadoop.hbase.Cell;
import org.apache.hadoop.hbase.CoprocessorEnvironment;
import org.apache.hadoop.hbase.DoNotRetryIOException;
import org.apache.hadoop.hbase.client.CheckAndMutate;
import org.apache.hadoop.hbase.client.CheckAndMutateResult;
import org.apache.hadoop.hbase.client.Get;
import org.apache.hadoop.hbase.client.Scan;
import org.apache.hadoop.hbase.client.TableDescriptor;
import org.apache.hadoop.hbase.coprocessor.ObserverContext;
import org.apache.hadoop.hbase.coprocessor.RegionCoprocessor;
import org.apache.hadoop.hbase.coprocessor.RegionCoprocessorEnvironment;
import org.apache.hadoop.hbase.coprocessor.RegionObserver;
import org.apache.hadoop.hbase.regionserver.FlushLifeCycleTracker;
import org.apache.hadoop.hbase.regionserver.InternalScanner;
import org.apache.hadoop.hbase.regionserver.ScanType;
import org.apache.hadoop.hbase.regionserver.Store;
import org.apache.hadoop.hbase.regionserver.compactions.CompactionLifeCycleTracker;
import org.apache.hadoop.hbase.regionserver.compactions.CompactionRequest;
import org.apache.hadoop.hbase.util.Bytes;
import org.apache.hadoop.hbase.util.EnvironmentEdgeManager;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The hooks of HBase on the tables {@code messages} and {@code payloads}; what they do stands in
 * the other classes. The name of this class stands in table descriptors and never changes.
 *
 * <p>An exception that is no IOException and leaves a hook aborts the region server. So none does:
 * where something is to be cleaned, the data stays and the error is counted; where somebody reads,
 * the reader is told.
 *
 * <p>What HBase moves within memory (in-memory compaction) is left alone: the flush that follows
 * drops the same rows.
 */
public final class RetentionObserver implements RegionCoprocessor, RegionObserver {
  private static final Logger LOG = LoggerFactory.getLogger(RetentionObserver.class);

  private TableSettings settings;
  private RegionMetrics metrics;
  private RegionNotes notes;
  private TopicCache cache; // null: the coprocessor did not start here
  private Reading reading;
  private boolean showsAll; // readers that ask for nothing surely get everything

  @Override
  public Optional<RegionObserver> getRegionObserver() {
    return Optional.of(this);
  }

  @Override
  @SuppressWarnings("rawtypes") // as in the interface
  public void start(CoprocessorEnvironment environment) {
    try {
      RegionCoprocessorEnvironment env = (RegionCoprocessorEnvironment) environment;
      TableDescriptor table = env.getRegion().getTableDescriptor();
      showsAll = TableSettings.showsAll(table); // first: it counts when what follows fails
      settings = new TableSettings(table);
      for (String mistake : settings.mistakes()) {
        LOG.error("tms_bad_attribute table={}: {}", settings.fullTable(), mistake);
      }
      metrics = new RegionMetrics(env.getMetricRegistryForRegionServer());
      reading = new Reading(settings, metrics);
      notes = new RegionNotes(env, settings);
      cache = TopicCache.join(notes, metrics);
    } catch (RuntimeException | LinkageError e) {
      // A region without us is better than a server that aborts; a probe finds out.
      LOG.error("tms_coprocessor_did_not_start, all rows stay", e);
    }
  }

  @Override
  @SuppressWarnings("rawtypes") // as in the interface
  public void stop(CoprocessorEnvironment environment) {
    if (cache != null) {
      notes.closed();
      cache.leave(notes);
    }
  }

  @Override
  public void postOpen(ObserverContext<RegionCoprocessorEnvironment> context) {
    if (cache != null) {
      notes.opened();
    }
  }

  @Override
  public void preClose(ObserverContext<RegionCoprocessorEnvironment> context, boolean abort) {
    if (cache != null) {
      notes.closed();
    }
  }

  @Override
  public void preFlush(
      ObserverContext<RegionCoprocessorEnvironment> context, FlushLifeCycleTracker tracker) {
    if (cache != null) {
      notes.flushStarts();
    }
  }

  @Override
  public void postFlush(
      ObserverContext<RegionCoprocessorEnvironment> context, FlushLifeCycleTracker tracker) {
    if (cache != null) {
      notes.flushEnded();
    }
  }

  @Override
  public InternalScanner preFlush(
      ObserverContext<RegionCoprocessorEnvironment> context,
      Store store,
      InternalScanner scanner,
      FlushLifeCycleTracker tracker) {
    return cleaning(store, scanner, null);
  }

  @Override
  public InternalScanner preCompact(
      ObserverContext<RegionCoprocessorEnvironment> context,
      Store store,
      InternalScanner scanner,
      ScanType scanType,
      CompactionLifeCycleTracker tracker,
      CompactionRequest request) {
    return cleaning(store, scanner, request);
  }

  /** The scanner without the rows that are not needed; {@code request} is null for a flush. */
  private InternalScanner cleaning(
      Store store, InternalScanner scanner, CompactionRequest request) {
    if (cache == null || !settings.enabled || scanner == null) {
      return scanner;
    }
    try {
      if (!store.getColumnFamilyName().equals(Bytes.toString(TableSettings.FAMILY))) {
        return scanner;
      }
      Metadata metadata = cache.metadata();
      long nowMs = EnvironmentEdgeManager.currentTime();
      RowRules rules = RowRules.ofStored(metadata, settings.payloads, nowMs, settings.ttlMs);
      OtherFiles others =
          new OtherFiles(store, request == null ? Collections.emptyList() : request.getFiles());
      RetentionScanner cleaning =
          new RetentionScanner(
              scanner, rules, others, metrics, cache.warnings(), settings.fullTable());
      if (request != null && request.isMajor()) {
        TransactionImage image = metadata == null ? null : metadata.image;
        notes.cleaningStarts(store, request, image, cleaning);
      }
      return cleaning;
    } catch (RuntimeException | LinkageError e) {
      metrics.decisionFailed();
      cache.warnings().warn("tms_cleaning_failed, all rows stay: of", settings.fullTable(), e);
      return scanner;
    }
  }

  @Override
  public void preScannerOpen(ObserverContext<RegionCoprocessorEnvironment> context, Scan scan)
      throws IOException {
    try {
      if (cache == null) {
        Reading.refuseUnlessRaw(scan, showsAll);
      } else if (settings.enabled && settings.messages) {
        reading.restrict(scan, cache.metadata());
      }
    } catch (RuntimeException | LinkageError e) {
      throw failed(e);
    }
  }

  @Override
  public void preGetOp(
      ObserverContext<RegionCoprocessorEnvironment> context, Get get, List<Cell> result)
      throws IOException {
    try {
      if (cache == null && get.getAttribute(Probe.ATTRIBUTE) != null) {
        context.bypass(); // without an answer: whoever asks knows what that means
      } else if (cache == null) {
        Reading.refuseUnlessRaw(get, showsAll);
      } else if (get.getAttribute(Probe.ATTRIBUTE) != null) {
        long nowMs = EnvironmentEdgeManager.currentTime();
        result.add(Probe.answer(get.getRow(), settings, cache.metadata(), nowMs));
        context.bypass();
      } else if (settings.enabled && settings.messages) {
        reading.restrict(get, cache.metadata());
      }
    } catch (RuntimeException | LinkageError e) {
      throw failed(e);
    }
  }

  @Override
  public CheckAndMutateResult preCheckAndMutate(
      ObserverContext<RegionCoprocessorEnvironment> context,
      CheckAndMutate asked,
      CheckAndMutateResult result)
      throws IOException {
    try {
      if (cache == null || !Cleanup.isAsked(asked)) {
        return result;
      }
      Cleanup.request(context.getEnvironment().getRegion(), metrics, cache.warnings());
      context.bypass();
      return new CheckAndMutateResult(true, null);
    } catch (RuntimeException | LinkageError e) {
      throw failed(e);
    }
  }

  private DoNotRetryIOException failed(Throwable error) {
    if (metrics != null) {
      metrics.decisionFailed();
    }
    return new DoNotRetryIOException("The coprocessor of TMS failed; see the cause.", error);
  }

  /** The cache that the regions of this server share, for tests. */
  TopicCache cache() {
    return cache;
  }

  /** The notes of this region, for tests. */
  RegionNotes notes() {
    return notes;
  }
}
