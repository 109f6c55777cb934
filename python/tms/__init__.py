"""TMS: an ordered, immutable, transactional message log, in one process and over HTTP.

    bus = tms.open("data/")                        # an engine in this process
    bus = tms.open("hbase://localhost:9090")       # the same, with everything kept in HBase
    bus = tms.connect("http://localhost:7070")     # a service

Both return the same `Bus`; `tms.aio` has the same for asyncio. Importing this module loads neither
the engine nor pyarrow.
"""

import os
import socket
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tms import errors
from tms.errors import ConfigError
from tms.model.quantity import Duration, outage, seconds
from tms.runtime.extras import needed
from tms.runtime.options import check_options, named_options
from tms.runtime.version import VERSION

if TYPE_CHECKING:
    from typing import Unpack

    from tms.block.received import Delivered as Delivered
    from tms.client import telemetry as telemetry
    from tms.client.client import Bus as Bus
    from tms.client.consumer import Consumer as Consumer
    from tms.client.cursor import Batch as Batch
    from tms.client.cursor import Page as Page
    from tms.client.group_options import DeliveryMode as DeliveryMode
    from tms.client.group_options import Group as Group
    from tms.client.http.transport import HttpTransport
    from tms.client.producer import Producer as Producer
    from tms.client.producer import Sent as Sent
    from tms.client.queue import DeadLetter as DeadLetter
    from tms.client.queue import Queue as Queue
    from tms.client.table import Table as Table
    from tms.client.table import TableWrites as TableWrites
    from tms.client.transaction import Transaction as Transaction
    from tms.client.view import View as View
    from tms.client.view_state import ViewSnapshot as ViewSnapshot
    from tms.client.worker import Worker as Worker
    from tms.engine.config import EngineConfig as EngineConfig
    from tms.engine.config import EngineOptions
    from tms.engine.engine import Engine
    from tms.errors import TMSError as TMSError
    from tms.model.backup import BackupInfo as BackupInfo
    from tms.model.delayed import DelayedId as DelayedId
    from tms.model.delayed import DelayedInfo as DelayedInfo
    from tms.model.delayed import DelayedMessage as DelayedMessage
    from tms.model.filter import Filter as Filter
    from tms.model.group import GroupInfo as GroupInfo
    from tms.model.group import GroupKind as GroupKind
    from tms.model.group import GroupSummary as GroupSummary
    from tms.model.ids import MessageId as MessageId
    from tms.model.keys import Partitioner as Partitioner
    from tms.model.lag import TopicSize as TopicSize
    from tms.model.message import Message as Message
    from tms.model.position import Position as Position
    from tms.model.queue import QueuedMessage as QueuedMessage
    from tms.model.queue import QueueInfo as QueueInfo
    from tms.model.queue import QueueSettings as QueueSettings
    from tms.model.queue import QueueSummary as QueueSummary
    from tms.model.queue import TokenResult as TokenResult
    from tms.model.snapshot import Isolation as Isolation
    from tms.model.topic import Durability as Durability
    from tms.model.topic import TopicInfo as TopicInfo
    from tms.model.topic import TopicSettings as TopicSettings
    from tms.model.transaction import CommittedPosition as CommittedPosition
    from tms.runtime.tls import ClientTls, PathText
    from tms.store.base import Store

_MODULES = {"aio": "tms.aio", "telemetry": "tms.client.telemetry"}
_HOMES = {  # of the names of this module, for which type checkers see the imports above
    "Bus": "tms.client.client",
    "Producer": "tms.client.producer",
    "Sent": "tms.client.producer",
    "Consumer": "tms.client.consumer",
    "Queue": "tms.client.queue",
    "Worker": "tms.client.worker",
    "Transaction": "tms.client.transaction",
    "View": "tms.client.view",
    "ViewSnapshot": "tms.client.view_state",
    "Table": "tms.client.table",
    "TableWrites": "tms.client.table",
    "Batch": "tms.client.cursor",
    "Page": "tms.client.cursor",
    "Delivered": "tms.block.received",
    "Message": "tms.model.message",
    "MessageId": "tms.model.ids",
    "Position": "tms.model.position",
    "CommittedPosition": "tms.model.transaction",
    "Filter": "tms.model.filter",
    "TopicInfo": "tms.model.topic",
    "TopicSettings": "tms.model.topic",
    "Durability": "tms.model.topic",
    "Partitioner": "tms.model.keys",
    "QueueInfo": "tms.model.queue",
    "QueueSettings": "tms.model.queue",
    "QueuedMessage": "tms.model.queue",
    "DeadLetter": "tms.client.queue",
    "TokenResult": "tms.model.queue",
    "GroupInfo": "tms.model.group",
    "GroupKind": "tms.model.group",
    "BackupInfo": "tms.model.backup",
    "DelayedId": "tms.model.delayed",
    "DelayedInfo": "tms.model.delayed",
    "DelayedMessage": "tms.model.delayed",
    "EngineConfig": "tms.engine.config",
    "TMSError": "tms.errors",
    "Group": "tms.client.group_options",
    "DeliveryMode": "tms.client.group_options",
    "Isolation": "tms.model.snapshot",
    "GroupSummary": "tms.model.group",
    "QueueSummary": "tms.model.queue",
    "TopicSize": "tms.model.lag",
}

__all__ = ["open", "connect", "errors", *_HOMES, "__version__"]
__version__ = VERSION


def open(
    path: str | os.PathLike[str],
    *,
    timeout_s: Duration = 30.0,
    outage_s: Duration | None = None,
    create: bool = True,
    take_over: bool = False,
    **config: "Unpack[EngineOptions]",
) -> "Bus":
    """The bus of an engine in this process, on the directory `path` or on HBase.

    `path` is a directory, which is created if it does not exist, or the URL of HBase:
    `hbase://HOST:PORT,…/NAMESPACE`, with the addresses of its Thrift 2 servers. Close the bus to
    release the directory or the store.

    `config` are the fields of `tms.EngineConfig`. `timeout_s` and `outage_s` are those of
    `connect`; here the outage is one of the store. `take_over` replaces a process that owns the
    store in HBase; the replaced process raises `NotOwner` from then on.

    Raises `NotFound` without `create` if the directory does not exist, `AlreadyRunning` if the
    directory is in use or another process owns the store in HBase, `DataCorrupt` if the directory
    is damaged, `ConfigError` if HBase has no tables of TMS, `StorageUnavailable` if HBase does not
    answer, and `Invalid` for an unknown option.
    """
    from tms.client.factories import make_bus

    limit_s, away_s = seconds("timeout_s", timeout_s), outage(outage_s)
    engine = open_engine(path, create, take_over, **config)
    return make_bus(engine, limit_s, away_s, str(path))


def open_engine(
    path: str | os.PathLike[str],
    create: bool = True,
    take_over: bool = False,
    **config: "Unpack[EngineOptions]",
) -> "Engine":
    """The engine below `open`: LevelDB in `path`, or HBase there; the machine's clock."""
    from dataclasses import fields

    from tms.cluster.ownership import own
    from tms.engine.config import EngineConfig
    from tms.engine.engine import Engine
    from tms.runtime.clock import SystemClock

    names = [field.name for field in fields(EngineConfig)]
    check_options("tms.open", config, [*names, "create", "outage_s", "take_over", "timeout_s"])
    settings, clock = EngineConfig(**config), SystemClock()
    store: Store
    if str(path).startswith(("hbase://", "hbases://")):
        with needed("hbase://", "hbase"):  # loads the driver, which others need not
            from tms.store.hbase.store import HBaseStore
        store = HBaseStore(str(path), clock=clock)
    else:
        from tms.store.leveldb.store import LevelDBStore

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


def instances_at(url: str, tls: "ClientTls | None" = None) -> str:
    """The URLs of a service, of a cluster as ZooKeeper knows them now."""
    if not url.startswith(("zookeeper://", "zookeepers://")):
        return url
    with needed("zookeeper://", "cluster"):  # loads kazoo
        from tms.cluster.zookeeper import Ensemble, addresses
    return ",".join(addresses(Ensemble.parse(url), tls))


@named_options
def connect(
    url: str = "http://127.0.0.1:7070",
    *,
    timeout_s: Duration = 30.0,
    outage_s: Duration | None = None,
    token: str | None = None,
    ca: "PathText | None" = None,
    cert: "PathText | tuple[PathText, PathText] | None" = None,
) -> "Bus":
    """The bus of the service at `url`, which is `http://HOST:PORT` or `https://HOST:PORT`.

    The bus connects when it is first used. For a cluster, `url` has the URLs of some instances,
    separated by commas, or the ZooKeeper servers where they register:
    `zookeeper[s]://HOST:PORT,…/FOLDER`. The client asks ZooKeeper once. If an instance cannot be
    reached, the client uses the next one.

    `timeout_s` bounds every call, repetitions included. Consumers, views and workers wait out an
    outage of the service for `outage_s` (None: forever) and log it; with 0 they fail as calls do.
    `token` authenticates the client; by default it is TMS_TOKEN, or the content of the file
    TMS_TOKEN_FILE. For https, `ca` is a file with the CA that signed the service's certificate, if
    this machine does not trust that CA anyway. `cert` is the client's own certificate, with the key
    in that file or as (certificate, key). The defaults are TMS_CA, TMS_CERT and TMS_KEY.

    Raises `ConfigError` for a wrong URL or token, an untrusted certificate or unusable files, and
    `Unavailable` if ZooKeeper knows no instance.
    """
    from tms.client.factories import make_bus

    limit_s, away_s = seconds("timeout_s", timeout_s), outage(outage_s)
    transport = connected(url, limit_s, token, ca, cert)
    return make_bus(transport, limit_s, away_s, transport.addresses.now.url)


def connected(
    url: str,
    timeout_s: float,
    token: str | None,
    ca: "PathText | None",
    cert: "PathText | tuple[PathText, PathText] | None",
) -> "HttpTransport":
    """The transport below `connect`."""
    from tms.client.http.transport import transport_to
    from tms.runtime.tls import ClientTls

    tls = ClientTls.of(ca, cert)
    urls = instances_at(url, tls)
    if (ca or cert) and "s://" not in url + urls:
        raise ConfigError(
            f"A CA or a certificate is given, but {urls} is not encrypted: write https:// instead "
            "of http://, or leave ca and cert out."
        )
    tls.check(urls)
    return transport_to(urls, timeout_s=timeout_s, token=token, tls=tls)


if not TYPE_CHECKING:  # type checkers see the imports above, and a misspelt name

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return import_module(_MODULES[name])
        if name in _HOMES:
            return getattr(import_module(_HOMES[name]), name)
        raise AttributeError(f"module 'tms' has no attribute {name!r}")
