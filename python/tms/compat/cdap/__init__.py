"""CDAP's messaging protocol under `/v1`, byte for byte, on the same engine: what its Java client
sends and expects. Nothing else of the service knows of it."""
