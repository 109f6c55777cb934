"""Topics over partition logs: their names, their settings, the retention of their messages."""
