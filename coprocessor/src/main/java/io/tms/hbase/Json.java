package io.tms.hbase;

/** Writes one flat JSON object. */
final class Json {
  private final StringBuilder out = new StringBuilder("{");

  Json text(String name, String value) {
    name(name).append('"');
    for (int i = 0; i < value.length(); i++) {
      char c = value.charAt(i);
      if (c == '"' || c == '\\') {
        out.append('\\').append(c);
      } else if (c < ' ') {
        out.append(String.format("\\u%04x", (int) c));
      } else {
        out.append(c);
      }
    }
    out.append('"');
    return this;
  }

  /** A null is written as null. */
  Json number(String name, Long value) {
    name(name).append(value);
    return this;
  }

  Json bool(String name, boolean value) {
    name(name).append(value);
    return this;
  }

  String end() {
    return out.append('}').toString();
  }

  private StringBuilder name(String name) {
    return out.append(out.length() == 1 ? "\"" : ", \"").append(name).append("\": ");
  }
}
