"""`tms queue …`: queues, and their messages for shell scripts."""
