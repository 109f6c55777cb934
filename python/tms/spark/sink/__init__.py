"""The data source `tms` of Spark 4: writers of batches and streams, exactly once.

    executor   rows ─▶ routing ─▶ filling ─▶ blocks ─▶ staging ─▶ an Attempt: who staged how much
    driver     the attempts that count ─▶ fence ─▶ one commit that names them

    options    what may be said          columns    which columns there have to be
    routing    rows by partition         headers    Spark's to those of blocks
    filling    slices of rows to blocks  staging    one attempt of a task
    fence      commit once, abort never too late    writer     what Spark calls

Only `writer` knows pyspark. docs/decisions/0009-spark-sink.md says why the protocol is what it is.
"""
