"""Several worker processes on one data directory: a supervisor has it, workers own what is in it."""
