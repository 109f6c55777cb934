"""Topics through the Apache HBase Spark connector, for pyspark 3.5: Spark reads the rows of
`tms:messages` from the region servers, and Python unpacks them where they arrive.

    view on the driver ─▶ ranges of rows ─▶ connector, region by region ─▶ mapInArrow ─▶ rows
"""

from tms.spark.connector.reading import read

__all__ = ["read"]
