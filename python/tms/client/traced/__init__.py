"""The client as it tells OpenTelemetry what it does: the same objects with spans around their
calls. They are made instead of the plain ones where the program uses OpenTelemetry, so the plain
ones know nothing of it, and cost nothing more.

    transport   what comes and what is settled, in whichever way it is asked for
    bus         what is published, and worked on
    aio         the same for asyncio
"""
