"""The endpoints of queues."""
