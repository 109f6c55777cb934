package io.tms.hbase;

/** Which coprocessor this is; the same as in the jar's name and manifest. */
final class Version {
  static final String NAME = "0.1.0";

  private Version() {}
}
