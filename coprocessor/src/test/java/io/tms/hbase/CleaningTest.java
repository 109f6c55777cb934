package io.tms.hbase;

import static io.tms.hbase.Blocks.DAY;
import static io.tms.hbase.Blocks.MINE;
import static io.tms.hbase.Blocks.NOW;
import static io.tms.hbase.Blocks.PLAIN;
import static org.junit.jupiter.api.Assertions.assertEquals;

import java.io.IOException;
import java.util.Map;
import java.util.Set;
import org.junit.jupiter.api.Test;

/** What flushes and compactions leave of rows. */
class CleaningTest {
  @Test
  void aFlushDropsExpiredRowsAndKeepsTheOthers() throws IOException {
    try (RegionKit kit = new RegionKit("messages", Map.of())) {
      kit.records.text("metadata:clock/retention", Long.toString(NOW));
      kit.records.text("metadata:topic/default/a", "{\"uid\":1,\"retention_ms\":" + DAY + "}");
      kit.publish();
      String old = Blocks.message(1, 0, 0, NOW - 2 * DAY, 0);
      String young = Blocks.message(1, 0, 0, NOW, 0);
      kit.put(Blocks.message(old, PLAIN, 0));
      kit.put(Blocks.message(young, PLAIN, 0));
      kit.flush();
      assertEquals(Set.of(young), kit.rows().keySet());
      assertEquals(1, kit.counted("dropped_expired"));
      assertEquals(MINE, 17);
    }
  }
}
