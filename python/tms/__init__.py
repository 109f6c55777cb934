"""TMS: an ordered, immutable, transactional message log, in one process and over HTTP.

    bus = tms.open("data/")                        # an engine in this process
    bus = tms.open("hbase://localhost:9090")       # the same, with everything kept in HBase
    bus = tms.connect("http://localhost:7070")     # a service

Both give the same `Bus`; `import tms.aio` brings the same names for asyncio. Importing this module
loads neither the engine nor pyarrow.
"""

import os
import socket
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tms.model.quantity import Duration, seconds
from tms.options import check_options, named_options

if TYPE_CHECKING:
    from tms.block.received import Delivered
    from tms.client.client import Bus
    from tms.client.consumer import Consumer
    from tms.client.cursor import Batch, Page
    from tms.client.producer import Producer
    from tms.client.queue import Queue
    from tms.engine import Engine
    from tms.errors import TMSError
    from tms.model.delayed import DelayedId
    from tms.model.ids import MessageId
    from tms.model.message import Message
    from tms.model.position import Position
    from tms.store.base import Store

__all__ = [
    "open",
    "connect",
    "Bus",
    "Producer",
    "Consumer",
    "Queue",
    "Delivered",
    "Batch",
    "Page",
    "Message",
    "MessageId",
    "DelayedId",
    "Position",
    "TMSError",
    "__version__",
]

__version__ = "0.1.0"

_HOMES = {
    "Bus": "tms.client.client",
    "Producer": "tms.client.producer",
    "Consumer": "tms.client.consumer",
    "Queue": "tms.client.queue",
    "Delivered": "tms.block.received",
    "Batch": "tms.client.cursor",
    "Page": "tms.client.cursor",
    "DelayedId": "tms.model.delayed",
    "Message": "tms.model.message",
    "MessageId": "tms.model.ids",
    "Position": "tms.model.position",
    "TMSError": "tms.errors",
}


def open(
    path: str | os.PathLike[str],
    *,
    timeout_s: Duration = 30.0,
    create: bool = True,
    take_over: bool = False,
    **config: Any,
) -> "Bus":
    """The bus of an engine in this process, with its messages in the directory `path`, which is
    made if missing, or in HBase: `hbase://HOST:PORT,…/NAMESPACE` names its Thrift 2 servers.

    Without `create` a directory that is not there is `NotFound`. `config` are the fields of
    `tms.engine.EngineConfig`. Raises `AlreadyRunning` when the directory is in use, or another
    process owns the store in HBase: `take_over` replaces that one, which from then on raises
    `NotOwner`. Raises `DataCorrupt` when the directory is damaged, `ConfigError` when HBase has no
    tables of TMS, `StorageUnavailable` when it does not answer, `Invalid` for an option that there
    is not. Close the bus to release the directory or the store.
    """
    from tms.client.client import Bus

    limit_s = seconds("timeout_s", timeout_s)
    return Bus(open_engine(path, create, take_over, **config), timeout_s=limit_s)


def open_engine(
    path: str | os.PathLike[str], create: bool = True, take_over: bool = False, **config: Any
) -> "Engine":
    """The engine below `open`: LevelDB in `path`, or HBase there; the machine's clock."""
    from dataclasses import fields

    from tms.clock import SystemClock
    from tms.engine import Engine, EngineConfig, own
    from tms.store.leveldb.store import LevelDBStore

    names = [field.name for field in fields(EngineConfig)]
    check_options("tms.open", config, [*names, "create", "take_over", "timeout_s"])
    settings, clock = EngineConfig(**config), SystemClock()
    store: Store
    if str(path).startswith("hbase://"):
        from tms.store.hbase.store import HBaseStore  # loads the driver, which others need not

        store = HBaseStore(str(path), clock=clock)
    else:
        store = LevelDBStore(path, create=create, clock=clock)
    owner = None
    try:
        name = f"process {os.getpid()} on {socket.gethostname()}"
        owner = own(store, clock, name, settings.owner, take_over)
        engine = Engine(store, clock, settings, owner=owner)
        engine.groups.forget_members()  # they were in a process that is gone
        engine.start()
    except BaseException:
        if owner is not None:
            owner.release()
        store.close()
        raise
    return engine


@named_options
def connect(url: str = "http://127.0.0.1:7070", *, timeout_s: Duration = 30.0) -> "Bus":
    """The bus of the service at `url`, `http://HOST:PORT` or https. Connects when first used.

    `timeout_s` bounds every call, repetitions included. Raises `ConfigError` for a wrong URL.
    """
    from tms.client.client import Bus
    from tms.client.http.transport import HttpTransport

    limit_s = seconds("timeout_s", timeout_s)
    return Bus(HttpTransport(url, timeout_s=limit_s), timeout_s=limit_s)


if not TYPE_CHECKING:  # type checkers see the imports above, and a misspelt name

    def __getattr__(name: str) -> Any:
        if name == "aio":
            return import_module("tms.aio")
        if name in _HOMES:
            return getattr(import_module(_HOMES[name]), name)
        raise AttributeError(f"module 'tms' has no attribute {name!r}")
