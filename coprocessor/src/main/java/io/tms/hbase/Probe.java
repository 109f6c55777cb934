package io.tms.hbase;

import org.apache.hadoop.hbase.Cell;
import org.apache.hadoop.hbase.CellBuilderFactory;
import org.apache.hadoop.hbase.CellBuilderType;
import org.apache.hadoop.hbase.util.Bytes;

/** The answer to the question whether the coprocessor works here, and which one. */
final class Probe {
  static final String ATTRIBUTE = "tms.probe";
  private static final byte[] QUALIFIER = Bytes.toBytes("probe");

  private Probe() {}

  /** One cell with what this region server knows. */
  static Cell answer(byte[] row, TableSettings settings, Metadata metadata, long nowMs) {
    TransactionImage image = metadata == null ? null : metadata.image;
    String json =
        new Json()
            .text("version", Version.NAME)
            .bool("enabled", settings.enabled)
            .number("metadata_age_ms", metadata == null ? null : nowMs - metadata.readAtMs)
            .number("topics_age_ms", metadata == null ? null : nowMs - metadata.topicsReadAtMs)
            .number("image_age_ms", image == null ? null : nowMs - image.timeMs)
            .text("table", settings.fullTable())
            .end();
    return CellBuilderFactory.create(CellBuilderType.DEEP_COPY)
        .setRow(row)
        .setFamily(TableSettings.FAMILY)
        .setQualifier(QUALIFIER)
        .setTimestamp(nowMs)
        .setType(Cell.Type.Put)
        .setValue(Bytes.toBytes(json))
        .build();
  }
}
