"""The cost of TMS in Spark: each way in or out beside Spark's own work on the same bytes."""
