"""Several worker processes on one data directory: a supervisor has it, workers divide it."""
