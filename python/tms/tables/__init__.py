"""Key-value data with versions, in the engine's own store: what transactions write beside
messages. Knows the rules of visibility, nothing of topics."""
