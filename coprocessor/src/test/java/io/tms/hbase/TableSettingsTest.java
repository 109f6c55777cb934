package io.tms.hbase;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.Map;
import org.apache.hadoop.hbase.TableName;
import org.apache.hadoop.hbase.client.ColumnFamilyDescriptorBuilder;
import org.apache.hadoop.hbase.client.TableDescriptorBuilder;
import org.apache.hbase.thirdparty.com.google.gson.JsonElement;
import org.apache.hbase.thirdparty.com.google.gson.JsonObject;
import org.junit.jupiter.api.Test;

/** What a table's attributes say. */
class TableSettingsTest {
  @Test
  void aTablesTtlIsWhatTheVectorsSayWhichPythonAgreesWith() {
    for (JsonElement element : Vectors.load("hbase").getAsJsonArray("ttls")) {
      JsonObject one = element.getAsJsonObject();
      ColumnFamilyDescriptorBuilder family =
          ColumnFamilyDescriptorBuilder.newBuilder(TableSettings.FAMILY);
      if (!one.get("family_ttl").isJsonNull()) {
        family.setValue("TTL", one.get("family_ttl").getAsString());
      }
      TableDescriptorBuilder table =
          TableDescriptorBuilder.newBuilder(TableName.valueOf("tms", "messages"))
              .setColumnFamily(family.build());
      for (Map.Entry<String, JsonElement> attribute :
          one.getAsJsonObject("attributes").entrySet()) {
        table.setValue(attribute.getKey(), attribute.getValue().getAsString());
      }
      long expected = one.get("ttl_ms").isJsonNull() ? -1 : one.get("ttl_ms").getAsLong();
      assertEquals(expected, new TableSettings(table.build()).ttlMs, one.toString());
    }
  }
}
