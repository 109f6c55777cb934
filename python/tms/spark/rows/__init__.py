"""Blocks → the rows that Spark sees, as Arrow record batches. Shared by every way to read a topic
from Spark; knows pyarrow, but not pyspark.

columns    which columns, their names and types
batches    from blocks to record batches
"""

from tms.spark.rows.batches import batches
from tms.spark.rows.columns import Columns, arrow_schema, spark_ddl

__all__ = ["Columns", "arrow_schema", "batches", "spark_ddl"]
