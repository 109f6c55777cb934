"""The two hot paths: publishing and fetching messages, without a framework in between."""
