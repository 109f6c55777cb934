"""Blocks → the rows that Spark sees, as Arrow record batches. Shared by every way to read a topic
from Spark; knows pyarrow, but not pyspark.

columns    which columns, their names and types
unpacking  from blocks to record batches
"""

from tms.spark.rows.columns import WantedColumns, arrow_schema, spark_ddl
from tms.spark.rows.unpacking import batches

__all__ = ["WantedColumns", "arrow_schema", "batches", "spark_ddl"]
