"""What TMS costs in Spark: each lane beside what Spark does with the same bytes without it."""
