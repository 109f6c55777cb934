import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutionException;
import org.apache.hadoop.hbase.HBaseConfiguration;
import org.apache.hadoop.hbase.HRegionLocation;
import org.apache.hadoop.hbase.ServerName;
import org.apache.hadoop.hbase.TableName;
import org.apache.hadoop.hbase.client.CompactionState;
import org.apache.hadoop.hbase.client.Connection;
import org.apache.hadoop.hbase.client.ConnectionFactory;
import org.apache.hadoop.hbase.client.RegionInfo;
import org.apache.hadoop.hbase.exceptions.MergeRegionException;
import org.apache.hadoop.hbase.util.Bytes;

/**
 * Carries out the commands of standard input, one line each, words separated by tabs. Every answer is
 * one line: {@code ok} and results, or {@code error} and a text. Each command is done when it answers.
 *
 * <pre>
 *   flush TABLE                 memory to files
 *   compact TABLE               minor compaction of every region, if it has enough files
 *   major_compact TABLE         one file for each region
 *   split TABLE KEY             the region of this row becomes two, the second beginning with it
 *   merge TABLE                 the first two regions become one
 *   move REGION [SERVER]        by encoded name, to a server (any one if it is not named)
 *   regions TABLE               of each: encoded name, start and end (as Bytes.toStringBinary), server
 *   files TABLE                 of each region: encoded name and number of store files
 *   servers                     the region servers
 * </pre>
 */
public class Admin {
  private static final long DONE_MS = 100_000;
  private static final long POLL_MS = 20;

  private final org.apache.hadoop.hbase.client.Admin admin;
  private final Connection connection;

  private Admin(Connection connection) throws Exception {
    this.connection = connection;
    this.admin = connection.getAdmin();
  }

  public static void main(String[] arguments) throws Exception {
    PrintStream answers = System.out;
    System.setOut(System.err);
    BufferedReader lines =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    Admin self = new Admin(ConnectionFactory.createConnection(HBaseConfiguration.create()));
    for (String line = lines.readLine(); line != null; line = lines.readLine()) {
      try {
        List<String> results = self.carryOut(line.split("\t"));
        answers.println(String.join("\t", prepend("ok", results)));
      } catch (Exception | Error error) {
        error.printStackTrace();
        answers.println("error\t" + String.valueOf(error).replaceAll("\\s+", " "));
      }
      answers.flush();
    }
  }

  private List<String> carryOut(String[] words) throws Exception {
    switch (words[0]) {
      case "flush":
        admin.flush(TableName.valueOf(words[1]));
        return List.of();
      case "compact":
        admin.compact(TableName.valueOf(words[1]));
        return compacted(TableName.valueOf(words[1]));
      case "major_compact":
        admin.majorCompact(TableName.valueOf(words[1]));
        return compacted(TableName.valueOf(words[1]));
      case "split":
        return split(TableName.valueOf(words[1]), Bytes.toBytesBinary(words[2]));
      case "merge":
        return merge(TableName.valueOf(words[1]));
      case "move":
        move(words);
        return List.of();
      case "regions":
        return regions(TableName.valueOf(words[1]));
      case "files":
        return files(TableName.valueOf(words[1]));
      case "servers":
        return servers();
      default:
        throw new IllegalArgumentException("no command " + words[0]);
    }
  }

  private List<String> compacted(TableName table) throws Exception {
    until(() -> admin.getCompactionState(table) == CompactionState.NONE, "compacted " + table);
    return List.of();
  }

  private List<String> split(TableName table, byte[] key) throws Exception {
    RegionInfo parent = connection.getRegionLocator(table).getRegionLocation(key, true).getRegion();
    admin.splitRegionAsync(parent.getRegionName(), key).get();
    return List.of();
  }

  private List<String> merge(TableName table) throws Exception {
    List<RegionInfo> regions = admin.getRegions(table);
    byte[][] names = {regions.get(0).getEncodedNameAsBytes(), regions.get(1).getEncodedNameAsBytes()};
    // Refused until the files that a compaction has replaced are gone.
    until(() -> merged(names), "merged the first two regions of " + table);
    return List.of();
  }

  private boolean merged(byte[][] names) throws Exception {
    try {
      admin.mergeRegionsAsync(names, false).get();
      return true;
    } catch (ExecutionException error) {
      if (error.getCause() instanceof MergeRegionException) {
        return false;
      }
      throw error;
    }
  }

  private void move(String[] words) throws Exception {
    byte[] region = Bytes.toBytes(words[1]);
    if (words.length == 2) {
      admin.move(region);
    } else {
      admin.move(region, ServerName.valueOf(words[2]));
    }
  }

  private List<String> regions(TableName table) throws Exception {
    List<String> results = new ArrayList<>();
    for (HRegionLocation one : connection.getRegionLocator(table).getAllRegionLocations()) {
      results.add(one.getRegion().getEncodedName());
      results.add(Bytes.toStringBinary(one.getRegion().getStartKey()));
      results.add(Bytes.toStringBinary(one.getRegion().getEndKey()));
      results.add(one.getServerName().getServerName());
    }
    return results;
  }

  private List<String> files(TableName table) throws Exception {
    List<String> results = new ArrayList<>();
    for (ServerName server : admin.getClusterMetrics().getLiveServerMetrics().keySet()) {
      for (var region : admin.getRegionMetrics(server, table)) {
        results.add(RegionInfo.encodeRegionName(region.getRegionName()));
        results.add(String.valueOf(region.getStoreFileCount()));
      }
    }
    return results;
  }

  private List<String> servers() throws Exception {
    List<String> results = new ArrayList<>();
    for (ServerName server : admin.getClusterMetrics().getLiveServerMetrics().keySet()) {
      results.add(server.getServerName());
    }
    return results;
  }

  private interface Condition {
    boolean holds() throws Exception;
  }

  private static void until(Condition condition, String what) throws Exception {
    long deadline = System.nanoTime() + DONE_MS * 1_000_000;
    while (!condition.holds()) {
      if (System.nanoTime() > deadline) {
        throw new IllegalStateException("not within " + DONE_MS + " ms: " + what);
      }
      Thread.sleep(POLL_MS);
    }
  }

  private static List<String> prepend(String first, List<String> rest) {
    List<String> all = new ArrayList<>(rest);
    all.add(0, first);
    return all;
  }
}
