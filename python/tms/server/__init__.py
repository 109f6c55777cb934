"""The service: the engine behind HTTP, its configuration, limits, metrics and logs."""
