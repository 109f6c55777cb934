"""What the messages of a topic come to, by key, kept current from the log."""
