package io.tms.hbase;

import java.util.EnumMap;
import java.util.Map;
import java.util.function.LongSupplier;
import org.apache.hadoop.hbase.metrics.Counter;
import org.apache.hadoop.hbase.metrics.Gauge;
import org.apache.hadoop.hbase.metrics.MetricRegistry;

/** The counters of the coprocessor, of all regions of a server together. */
final class RegionMetrics {
  private final MetricRegistry registry;
  private final Map<Reason, Counter> reasons = new EnumMap<>(Reason.class);
  private final Counter hidden;
  private final Counter refreshFailures;
  private final Counter refreshRows;
  private final Counter decisionErrors;

  RegionMetrics(MetricRegistry registry) {
    this.registry = registry;
    for (Reason reason : Reason.values()) {
      if (reason.drops()) {
        reasons.put(reason, registry.counter("dropped_" + reason.text()));
      }
    }
    reasons.put(Reason.OPEN, registry.counter("kept_open"));
    reasons.put(Reason.UNSURE, registry.counter("kept_unsure"));
    reasons.put(Reason.DAMAGED, registry.counter("damaged"));
    hidden = registry.counter("hidden");
    refreshFailures = registry.counter("refresh_failures");
    refreshRows = registry.counter("refresh_rows");
    decisionErrors = registry.counter("decision_errors");
  }

  /** Counts rows by the reason to drop or keep them, except those that are simply kept. */
  void count(Reason reason, long rows) {
    Counter counter = reasons.get(reason);
    if (counter != null && rows > 0) {
      counter.increment(rows);
    }
  }

  /** A row that a reader does not get. */
  void hidden() {
    hidden.increment();
  }

  void refreshFailed() {
    refreshFailures.increment();
  }

  /** Rows of the table of records that a refresh was given. */
  void refreshRead(long rows) {
    refreshRows.increment(rows);
  }

  void decisionFailed() {
    decisionErrors.increment();
  }

  /** Shows how old the metadata of a namespace is; in place of what another version showed. */
  void showAge(String namespace, LongSupplier ageMs) {
    String name = "refresh_age_ms_" + namespace;
    registry.remove(name);
    registry.register(name, (Gauge<Long>) ageMs::getAsLong);
  }
}
