"""Log groups over the log: their members, kept in the journal `system:_groups`, and their lag."""
