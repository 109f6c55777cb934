package io.tms.hbase;

import java.util.concurrent.ConcurrentHashMap;
import org.apache.hadoop.hbase.util.EnvironmentEdgeManager;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Writes to the log, but the same event not too often: rows come by the million. */
final class Warnings {
  private static final Logger LOG = LoggerFactory.getLogger(RetentionObserver.class);
  private static final int EVENTS_MAX = 64;

  private final ConcurrentHashMap<String, Long> lastMs = new ConcurrentHashMap<>();
  private volatile long leastMs;

  Warnings(long leastMs) {
    this.leastMs = leastMs;
  }

  /** Changes the least time between two equal events. */
  void every(long leastMs) {
    this.leastMs = leastMs;
  }

  /**
   * @param event constant words; together with {@code where} they say whether it is the same event
   */
  void warn(String event, String where, Throwable error) {
    long nowMs = EnvironmentEdgeManager.currentTime();
    String key = event + ' ' + where;
    Long last = lastMs.get(key);
    if (last != null && nowMs - last >= 0 && nowMs - last < leastMs) {
      return;
    }
    if (lastMs.size() >= EVENTS_MAX) {
      lastMs.clear();
    }
    lastMs.put(key, nowMs);
    if (error == null) {
      LOG.warn("{} {}", event, where);
    } else {
      LOG.warn("{} {}", event, where, error);
    }
  }
}
