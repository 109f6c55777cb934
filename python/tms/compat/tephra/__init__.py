"""Apache Tephra's Thrift protocol on the engine's transactions; no Thrift is known outside."""
