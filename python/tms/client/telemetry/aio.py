"""The asyncio bus with spans; see `bus`. Each task has its own active span."""

from tms.client.aio.bus import AsyncBus
from tms.client.aio.derived import in_thread
from tms.client.telemetry.bus import TracedBus, sending


class TracedAsyncBus(AsyncBus):
    """As `AsyncBus` and `TracedBus`."""

    publish = sending(AsyncBus.publish)
    publish_many = sending(AsyncBus.publish_many)
    publish_later_many = in_thread(TracedBus.publish_later_many)
