"""A stream of Spark that copies a topic in small batches, until it has all messages. After a kill
it is started again, and continues from its checkpoint."""

from integration.soak.load.worker import Worker


def work(worker: Worker) -> None:
    """Copy, with the same checkpoint after each start."""
    import tms.spark

    job = worker.job
    options = {"tms.url": job.url, "subscribe": job.options["topic"], "includeHeaders": "true"}
    options |= {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(job.options["offsets"])}
    spark = tms.spark.session(
        "local[2]", **{"spark.ui.enabled": "false", "spark.driver.memory": "2g"}
    )
    try:
        rows = spark.readStream.format("tms").options(**options).load()
        writer = rows.select("key", "value", "headers").writeStream.format("tms")
        writer = writer.option("tms.url", job.url).option("topic", job.options["output"])
        writer = writer.option("checkpointLocation", f"{job.directory}/checkpoint")
        writer.trigger(availableNow=True).start().awaitTermination()
    finally:
        spark.stop()
