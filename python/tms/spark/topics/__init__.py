"""Where Spark reads topics from: a service, or tables in HBase. No Spark in it."""
