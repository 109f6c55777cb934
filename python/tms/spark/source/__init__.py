"""The data source `tms` of Spark 4: options, offsets, and the readers of batches and streams."""
