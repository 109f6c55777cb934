"""The default sizes of an archive's batches and files."""

ROWS_PER_BATCH = 1_000_000
ROWS_PER_FILE = 500_000
EVERY = "10 minutes"  # how often one that goes on for ever looks for more
