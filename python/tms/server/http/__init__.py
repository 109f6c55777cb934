"""Connections, requests and responses: everything of HTTP that knows no topics."""
