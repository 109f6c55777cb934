"""The client's side of HTTP/1.1: bytes without I/O, sockets, and the two transports, synchronous
and asyncio."""
