"""Topics over partition logs: which exist, with what settings, how long their messages stay."""
