package io.tms.hbase;

import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Random;
import java.util.stream.Stream;
import org.apache.hadoop.hbase.client.Durability;

/**
 * Major compactions of the same files, in turns without the coprocessor, with it when every row
 * stays, and with it when the older half goes. Argument: MiB of data, 256 by default. The ratio is
 * one of processor time, which other work on the machine does not change.
 */
public final class CompactionBenchmark {
  private static final int FILES = 4;
  private static final int ROUNDS = 6;

  private CompactionBenchmark() {}

  private enum Variant {
    WITHOUT,
    ALL_STAY,
    HALF_GO
  }

  private record Data(Path directory, long rows) {}

  private record Took(double wallSeconds, double cpuSeconds) {}

  /** Runs it. */
  public static void main(String[] arguments) throws IOException {
    long bytes = (arguments.length == 0 ? 256L : Long.parseLong(arguments[0])) << 20;
    for (int rowBytes : new int[] {64 << 10, 1 << 10}) {
      run(bytes, rowBytes);
    }
    System.exit(0); // threads of HBase's metrics
  }

  private static void run(long bytes, int rowBytes) throws IOException {
    Data data = write(bytes, rowBytes);
    Map<Variant, List<Took>> seconds = new LinkedHashMap<>();
    for (int round = 0; round <= ROUNDS; round++) {
      for (Variant variant : Variant.values()) {
        Took took = compact(variant, data);
        if (round > 0) { // the first one warms up
          seconds.computeIfAbsent(variant, v -> new ArrayList<>()).add(took);
        }
      }
    }
    remove(data.directory());
    double without = leastCpu(seconds.get(Variant.WITHOUT));
    seconds.forEach(
        (variant, all) -> {
          double best = all.stream().mapToDouble(Took::wallSeconds).min().orElseThrow();
          System.out.printf(
              Locale.ROOT,
              "compaction of %d MiB, rows of %d KiB, %s: %.3f s, %.0f MiB/s, cpu %.3f s, ratio %.3f%n",
              bytes >> 20,
              rowBytes >> 10,
              variant,
              best,
              (bytes >> 20) / best,
              leastCpu(all),
              leastCpu(all) / without);
        });
  }

  private static double leastCpu(List<Took> all) {
    return all.stream().mapToDouble(Took::cpuSeconds).min().orElseThrow();
  }

  /** Files as flushes leave them, each over the whole range of keys. */
  private static Data write(long bytes, int rowBytes) throws IOException {
    byte[] body = new byte[rowBytes];
    new Random(1).nextBytes(body);
    long rows = bytes / rowBytes;
    Path copy = Files.createTempDirectory(Path.of("").toAbsolutePath(), "compaction");
    try (RegionKit kit = kit(false)) {
      for (int file = 0; file < FILES; file++) {
        for (long i = file; i < rows; i += FILES) {
          String row = Blocks.message(1, 0, 0, Blocks.NOW - rows + i, 0);
          byte[] block = Blocks.block(i % 3 == 0 ? Blocks.MINE : Blocks.PLAIN, 5, rowBytes);
          System.arraycopy(body, 48, block, 48, rowBytes - 48);
          kit.put(Blocks.put(row, Blocks.timeOf(row), block).setDurability(Durability.SKIP_WAL));
        }
        kit.flush();
      }
      link(kit.storeDirectory(), copy);
    }
    return new Data(copy, rows);
  }

  private static RegionKit kit(boolean withCoprocessor) throws IOException {
    return new RegionKit(
        withCoprocessor,
        "messages",
        Map.of(),
        "hbase.hregion.memstore.flush.size",
        Long.toString(4L << 30));
  }

  private static Took compact(Variant variant, Data data) throws IOException {
    try (RegionKit kit = kit(variant != Variant.WITHOUT)) {
      long newest = Blocks.NOW * Blocks.POINTERS_PER_MS;
      long keptMs = variant == Variant.HALF_GO ? data.rows() / 2 : data.rows() * 2;
      kit.records.text("metadata:clock/retention", Long.toString(Blocks.NOW));
      kit.records.text("metadata:topic/a/b", "{\"uid\":1,\"retention_ms\":" + keptMs + "}");
      kit.seal(1, 0, 0);
      kit.records.put("metadata:transactions/image", Images.encode(Blocks.NOW, newest, newest, 7));
      if (variant != Variant.WITHOUT) {
        kit.publish();
      }
      link(data.directory(), kit.storeDirectory());
      kit.store().refreshStoreFiles();
      System.gc();
      ThreadMXBean threads = ManagementFactory.getThreadMXBean();
      long start = System.nanoTime();
      long cpu = threads.getCurrentThreadCpuTime();
      kit.compact(true);
      return new Took(
          (System.nanoTime() - start) / 1e9, (threads.getCurrentThreadCpuTime() - cpu) / 1e9);
    }
  }

  private static void remove(Path directory) throws IOException {
    try (Stream<Path> files = Files.list(directory)) {
      for (Path file : files.toList()) {
        Files.delete(file);
      }
    }
    Files.delete(directory);
  }

  private static void link(Path from, Path to) throws IOException {
    Files.createDirectories(to);
    try (Stream<Path> files = Files.list(from)) {
      for (Path file : files.filter(Files::isRegularFile).toList()) {
        Files.createLink(to.resolve(file.getFileName()), file);
      }
    }
  }
}
