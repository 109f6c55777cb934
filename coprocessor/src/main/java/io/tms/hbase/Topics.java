package io.tms.hbase;

import java.util.Arrays;

/**
 * The live topics by uid, and the uids noted as deleted. Immutable; sorted arrays, 16 bytes for a
 * topic.
 */
final class Topics {
  /** No live topic has the uid. */
  static final long NONE = -1;

  /** There is a topic, but its record cannot be trusted. */
  static final long UNSURE = -2;

  /** The topic has no retention of its own: the store's default counts. */
  static final long DEFAULT = -3;

  /** The topic keeps its messages for ever. */
  static final long FOREVER = Long.MAX_VALUE;

  private final long[] uids;
  private final long[] retentions;
  private final long[] deleted;
  private final boolean whole;

  private Topics(long[] uids, long[] retentions, long[] deleted, boolean whole) {
    this.uids = uids;
    this.retentions = retentions;
    this.deleted = deleted;
    this.whole = whole;
  }

  /**
   * How long the topic keeps its messages, ms; or {@code FOREVER}, {@code DEFAULT}, {@code NONE},
   * {@code UNSURE}.
   */
  long retentionMs(long uid) {
    int at = Arrays.binarySearch(uids, uid);
    if (at >= 0) {
      return retentions[at];
    }
    return whole ? NONE : UNSURE; // it may be the topic whose record could not be read
  }

  /**
   * True if a note says that this topic was deleted; it counts only if no live topic has the uid.
   */
  boolean isNotedDeleted(long uid) {
    return Arrays.binarySearch(deleted, uid) >= 0;
  }

  /** True if every topic's record could be read. */
  boolean isWhole() {
    return whole;
  }

  int size() {
    return uids.length;
  }

  /** True if one of these topics is deleted by the changed ones. */
  boolean areDeleted(Topics changed) {
    for (long uid : changed.deleted) {
      if (isKnown(uid)) {
        return true;
      }
    }
    return false;
  }

  /**
   * These topics with what changed since. A record that was removed does not show in that, so no
   * topic goes; and one that could not be trusted cannot be until all are read again.
   */
  Topics with(Topics changed) {
    if (changed.uids.length == 0 && changed.deleted.length == 0) {
      return this;
    }
    Builder all = new Builder();
    for (int i = 0; i < uids.length; i++) {
      if (retentions[i] == UNSURE || Arrays.binarySearch(changed.uids, uids[i]) < 0) {
        all.add(uids[i], retentions[i]);
      }
    }
    for (int i = 0; i < changed.uids.length; i++) {
      if (retentionMs(changed.uids[i]) != UNSURE || !isKnown(changed.uids[i])) {
        all.add(changed.uids[i], changed.retentions[i]);
      }
    }
    for (long uid : deleted) {
      all.addDeleted(uid);
    }
    for (long uid : changed.deleted) {
      if (!isNotedDeleted(uid)) {
        all.addDeleted(uid);
      }
    }
    if (!whole) {
      all.addUnreadable();
    }
    return all.build();
  }

  private boolean isKnown(long uid) {
    return Arrays.binarySearch(uids, uid) >= 0;
  }

  /** Collects what was read. */
  static final class Builder {
    private static final int INDEX_BITS = 31;

    private final Longs uids = new Longs();
    private final Longs retentions = new Longs();
    private final Longs deleted = new Longs();
    private boolean whole = true;

    void add(long uid, long retentionMs) {
      uids.add(uid);
      retentions.add(retentionMs);
    }

    void addDeleted(long uid) {
      deleted.add(uid);
    }

    /** A topic has a record of which not even the uid is known: it may be any. */
    void addUnreadable() {
      whole = false;
    }

    int size() {
      return uids.size() + deleted.size();
    }

    Topics build() {
      long[] byUid = uids.toArray();
      long[] found = retentions.toArray();
      for (int i = 0; i < byUid.length; i++) {
        byUid[i] = byUid[i] << INDEX_BITS | i; // a uid has 32 bits
      }
      Arrays.sort(byUid);
      long[] sortedUids = new long[byUid.length];
      long[] sortedRetentions = new long[byUid.length];
      int size = 0;
      for (long packed : byUid) {
        long uid = packed >>> INDEX_BITS;
        long retentionMs = found[(int) (packed & Integer.MAX_VALUE)];
        if (size > 0 && sortedUids[size - 1] == uid) {
          sortedRetentions[size - 1] = UNSURE; // two topics with one uid
        } else {
          sortedUids[size] = uid;
          sortedRetentions[size++] = retentionMs;
        }
      }
      long[] sortedDeleted = deleted.toArray();
      Arrays.sort(sortedDeleted);
      return new Topics(
          Arrays.copyOf(sortedUids, size),
          Arrays.copyOf(sortedRetentions, size),
          sortedDeleted,
          whole);
    }
  }
}
