"""The data source `tms` of Spark 4: writers of batches and streams, exactly once.

    On executors: rows ─▶ routing ─▶ filling ─▶ blocks ─▶ staging ─▶ an attempt
    On the driver: the attempts that count ─▶ fence ─▶ one commit that names them

    options  the options of a write
    columns  the columns that rows need
    routing  rows by partition
    headers  Spark's headers to those of blocks
    filling  slices of rows to blocks
    staging  one attempt of a task
    fence    commit once, abort never too late
    writer   the writers that Spark calls

Only `writer` knows pyspark. docs/decisions/0009-spark-sink.md says why the protocol is what it is.
"""
