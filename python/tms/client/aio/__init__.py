"""The asyncio client: the bus, producer and consumer of `tms.client` with the same names."""
