"""Queues, as a program works with them."""
