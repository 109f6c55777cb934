"""Queues over the log: joins the room `queue`, which decides, with the log and a journal."""

from tms.queues.queues import Queues

__all__ = ["Queues"]
