"""The client: one bus with the same methods over an embedded engine and over HTTP, synchronous and
asyncio.

It never imports the engine; `tms.open` and `tms.connect` join the two.
"""
