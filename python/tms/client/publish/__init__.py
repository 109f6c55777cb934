"""How messages become blocks and get into the log, each exactly once."""
