"""TMS for asyncio: `open` and `connect` as in `tms`, which return an `AsyncBus`. Its methods are
those of `Bus`; calls that wait are awaited, iterations are `async for`.

async with tms.aio.connect("http://localhost:7070") as bus:
    async for message in bus.consumer("flights", start="earliest", stop_at_end=True):
        print(message.value)
"""

import os
from typing import TYPE_CHECKING, Unpack

from tms import connected, open_engine
from tms.client.aio.bus import AsyncBus
from tms.client.aio.channels import AsyncLocalChannel
from tms.client.aio.consumer import AsyncConsumer
from tms.client.aio.producer import AsyncProducer, AsyncSent
from tms.client.aio.queues import AsyncQueue
from tms.client.aio.table import AsyncTable, AsyncTableWrites
from tms.client.aio.transaction import AsyncTransaction
from tms.client.aio.worker import AsyncWorker
from tms.client.factories import make_async_bus, make_bus
from tms.client.http.aio import AsyncHttpChannel
from tms.model.quantity import Duration, outage, seconds
from tms.runtime.options import named_options
from tms.runtime.tls import PathText

if TYPE_CHECKING:
    from tms.engine.config import EngineOptions

__all__ = [
    "open",
    "connect",
    "AsyncBus",
    "AsyncProducer",
    "AsyncSent",
    "AsyncConsumer",
    "AsyncQueue",
    "AsyncWorker",
    "AsyncTransaction",
    "AsyncTable",
    "AsyncTableWrites",
]


def open(
    path: str | os.PathLike[str],
    *,
    timeout_s: Duration = 30.0,
    outage_s: Duration | None = None,
    create: bool = True,
    take_over: bool = False,
    **config: "Unpack[EngineOptions]",
) -> AsyncBus:
    """As `tms.open`. Opening blocks for some milliseconds, in HBase for longer."""
    limit_s, away_s = seconds("timeout_s", timeout_s), outage(outage_s)
    engine = open_engine(path, create, take_over, **config)
    bus = make_bus(engine, limit_s, away_s, str(path))
    return make_async_bus(bus, lambda: AsyncLocalChannel(engine))


@named_options
def connect(
    url: str = "http://127.0.0.1:7070",
    *,
    timeout_s: Duration = 30.0,
    outage_s: Duration | None = None,
    token: str | None = None,
    ca: PathText | None = None,
    cert: PathText | tuple[PathText, PathText] | None = None,
) -> AsyncBus:
    """As `tms.connect`."""
    limit_s, away_s = seconds("timeout_s", timeout_s), outage(outage_s)
    transport = connected(url, limit_s, token, ca, cert)
    bus = make_bus(transport, limit_s, away_s, transport.addresses.now.url)
    return make_async_bus(bus, lambda: AsyncHttpChannel(transport.addresses, transport.calls))
