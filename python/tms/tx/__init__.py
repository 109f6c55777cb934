"""Transactions: the pure state machine, its edits, and who drives it over a journal."""
