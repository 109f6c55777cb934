package io.tms.hbase;

import static io.tms.hbase.Blocks.BACK;
import static io.tms.hbase.Blocks.DAY;
import static io.tms.hbase.Blocks.FOREIGN;
import static io.tms.hbase.Blocks.HOUR;
import static io.tms.hbase.Blocks.MINE;
import static io.tms.hbase.Blocks.NOW;
import static io.tms.hbase.Blocks.PLAIN;
import static io.tms.hbase.Blocks.POINTERS_PER_MS;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.TreeSet;
import org.apache.hadoop.hbase.Cell;
import org.apache.hadoop.hbase.client.Delete;
import org.apache.hadoop.hbase.client.Mutation;
import org.apache.hadoop.hbase.client.Put;
import org.apache.hadoop.hbase.client.Scan;
import org.apache.hadoop.hbase.util.Bytes;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Random histories of writes, flushes and compactions: exactly the right rows are left. */
class HistoryTest {
  private static final long DEAD = (NOW - 5 * HOUR) * POINTERS_PER_MS;
  private static final long OPEN = (NOW - 4 * HOUR) * POINTERS_PER_MS;
  private static final long DONE = (NOW - 3 * HOUR) * POINTERS_PER_MS;
  private static final long LATER = (NOW + HOUR) * POINTERS_PER_MS;

  private enum Kind {
    PLAIN_ROW,
    COMMITTED,
    IN_PROGRESS,
    BEGUN_LATER,
    INVALID,
    TAKEN_BACK,
    FOREIGN_ROW,
    FOREIGN_TAKEN_BACK,
    EXPIRED,
    OF_A_DELETED_TOPIC,
    ORPHAN,
    BELOW_THE_FLOOR,
    BEHIND_THE_SEAL,
    DAMAGED,
    REMOVED
  }

  private final Map<String, Boolean> needed = new HashMap<>();
  private final Set<String> removed = new TreeSet<>();
  private final List<List<Mutation>> steps = new ArrayList<>();
  private int count;

  private void write(Random random, Kind kind) {
    int sequence = count++;
    long at = NOW - HOUR + random.nextInt(1000);
    switch (kind) {
      case PLAIN_ROW -> row(true, message(at, sequence), PLAIN, 0, random);
      case COMMITTED -> row(true, message(at, sequence), MINE, DONE, random);
      case IN_PROGRESS -> row(true, message(at, sequence), MINE, OPEN, random);
      case BEGUN_LATER -> row(true, message(at, sequence), MINE, LATER, random);
      case INVALID -> row(false, message(at, sequence), MINE, DEAD, random);
      case FOREIGN_ROW -> row(true, message(at, sequence), FOREIGN, DEAD, random);
      case TAKEN_BACK -> takeBack(row(false, message(at, sequence), MINE, DONE, random), MINE);
      case FOREIGN_TAKEN_BACK ->
          takeBack(row(false, message(at, sequence), FOREIGN, DEAD, random), FOREIGN);
      case EXPIRED -> row(false, message(at - DAY, sequence), PLAIN, 0, random);
      case OF_A_DELETED_TOPIC ->
          row(false, Blocks.message(2, 0, 1, at, sequence), PLAIN, 0, random);
      case ORPHAN -> row(false, Blocks.message(9, 0, 1, at - DAY, sequence), PLAIN, 0, random);
      case BELOW_THE_FLOOR ->
          row(false, Blocks.message(1, 1, 1, at - 3 * HOUR, sequence), MINE, OPEN, random);
      case BEHIND_THE_SEAL -> row(false, Blocks.message(1, 1, 0, at, sequence), MINE, DONE, random);
      case DAMAGED -> {
        String row = message(at - DAY, sequence);
        needed.put(row, true);
        steps.add(List.of(Blocks.put(row, at, new byte[random.nextInt(60)])));
      }
      case REMOVED -> {
        String row = message(at, sequence);
        needed.put(row, false);
        removed.add(row);
        steps.add(List.of(Blocks.message(row, PLAIN, 0), new Delete(Bytes.toBytes(row))));
      }
    }
  }

  private static String message(long timeMs, int sequence) {
    return Blocks.message(1, 0, 1, timeMs, sequence);
  }

  private String row(boolean isNeeded, String row, int flags, long pointer, Random random) {
    needed.put(row, isNeeded);
    steps.add(new ArrayList<>(List.of(put(row, 0, flags, pointer, random.nextInt(3)))));
    return row;
  }

  private static Put put(String row, int later, int flags, long pointer, int more) {
    long cellMs = Blocks.timeOf(row) + later;
    Put put = Blocks.put(row, cellMs, Blocks.block(flags, pointer, 64));
    for (int i = 1; i <= more; i++) {
      put.addColumn(TableSettings.FAMILY, Bytes.toBytes("b0" + i), cellMs, new byte[30]);
    }
    return put;
  }

  private void takeBack(String row, int flags) {
    Put first = (Put) steps.get(steps.size() - 1).get(0);
    int more = first.size() - 1;
    steps.get(steps.size() - 1).add(put(row, 1, flags | BACK, flags == MINE ? DONE : DEAD, more));
  }

  private static void describe(RegionKit kit) throws IOException {
    kit.records.text("metadata:clock/retention", Long.toString(NOW));
    kit.records.text("metadata:topic/default/a", "{\"uid\":1,\"retention_ms\":" + 12 * HOUR + "}");
    kit.records.text("metadata:deleted/00000002", "");
    kit.records.text(
        "metadata:partition/00000001/00001",
        "{\"segments\":[{\"number\":0,\"last\":["
            + (NOW - 2 * HOUR)
            + ",9]},{\"number\":1,\"last\":null}],"
            + "\"floor\":["
            + (NOW - 3 * HOUR)
            + ",0]}");
    long[] open = {OPEN};
    kit.records.put(
        "metadata:transactions/image", Images.encode(NOW, DONE, DONE + 1, new long[] {DEAD}, open));
    kit.publish();
  }

  @ParameterizedTest
  @ValueSource(longs = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10})
  void exactlyTheRightRowsAreLeft(long seed) throws IOException {
    Random random = new Random(seed);
    for (int i = 0; i < 150; i++) {
      write(random, Kind.values()[random.nextInt(Kind.values().length)]);
    }
    String cellsPerCall = Integer.toString(1 + random.nextInt(4));
    try (RegionKit kit =
        new RegionKit(
            "messages",
            Map.of("tms.ttl", Long.toString(12 * HOUR)),
            "hbase.hstore.compaction.kv.max",
            cellsPerCall,
            "hbase.hstore.compaction.min",
            "2",
            "hbase.hstore.compaction.max",
            "3")) {
      describe(kit);
      Map<String, Put> newest = new HashMap<>();
      while (!steps.isEmpty()) {
        List<Mutation> next = steps.get(random.nextInt(steps.size()));
        apply(kit, next.get(0), newest);
        steps.remove(next);
        if (next.size() > 1) {
          steps.add(next.subList(1, next.size()));
        }
        int then = random.nextInt(40);
        if (then <= 3) {
          kit.flush();
          check(kit, newest, false, seed);
        }
        if (then <= 1) {
          kit.compact(then == 0);
          check(kit, newest, false, seed);
        }
      }
      kit.flush();
      kit.compact(true);
      check(kit, newest, true, seed);
    }
  }

  private static void apply(RegionKit kit, Mutation step, Map<String, Put> newest)
      throws IOException {
    String row = Bytes.toString(step.getRow());
    if (step instanceof Put put) {
      kit.put(put);
      newest.put(row, put);
    } else {
      kit.region().delete((Delete) step);
      newest.remove(row);
    }
  }

  /** Nothing is in memory now. */
  private void check(RegionKit kit, Map<String, Put> newest, boolean complete, long seed)
      throws IOException {
    Map<String, List<Cell>> found = new HashMap<>();
    for (List<Cell> cells : kit.read(new Scan(), false)) {
      Cell first = cells.get(0);
      String row = Bytes.toString(first.getRowArray(), first.getRowOffset(), first.getRowLength());
      found.put(row, cells);
    }
    newest.forEach(
        (row, put) -> {
          String what = "seed " + seed + " row " + row;
          boolean back = (flagsOf(put) & BACK) != 0;
          if (needed.get(row) || (removed.contains(row) && newest.containsKey(row))) {
            assertTrue(found.containsKey(row), what);
          } else if (!isTakenBackLater(row) && !back) {
            assertFalse(found.containsKey(row), what);
          }
          List<Cell> cells = found.get(row);
          if (cells != null) {
            assertEquals(put.size(), cells.size(), what); // all of it
            assertEquals(
                flagsOf(put), cells.get(0).getValueLength() > 5 ? flagsOf(cells) : 0, what);
          }
        });
    assertTrue(newest.keySet().containsAll(found.keySet()), "seed " + seed);
    if (complete) {
      Set<String> left = new TreeSet<>();
      needed.forEach((row, isNeeded) -> left.addAll(isNeeded ? Set.of(row) : Set.of()));
      assertEquals(left, new TreeSet<>(found.keySet()), "seed " + seed);
    }
  }

  private boolean isTakenBackLater(String row) {
    return steps.stream().anyMatch(step -> row.equals(Bytes.toString(step.get(0).getRow())));
  }

  private static int flagsOf(Put put) {
    Cell cell = put.get(TableSettings.FAMILY, TableSettings.BLOCK).get(0);
    return cell.getValueLength() > 5 ? cell.getValueArray()[cell.getValueOffset() + 5] : 0;
  }

  private static int flagsOf(List<Cell> cells) {
    return cells.get(0).getValueArray()[cells.get(0).getValueOffset() + 5];
  }
}
