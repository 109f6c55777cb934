package io.tms.hbase;

import java.io.IOException;

/** Bytes that are not what they should be; says what and why. */
final class Malformed extends IOException {
  private static final long serialVersionUID = 1;

  Malformed(String message) {
    super(message);
  }

  Malformed(String message, Throwable cause) {
    super(message, cause);
  }
}
