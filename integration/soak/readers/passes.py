"""One pass of readers: `python -m integration.soak.readers TASK`, a JSON document.

directory url topics seed     the directory of the readings, and the topics
pass                          online | offline | spark | connector
data                          the directory of the store, for offline and connector
zookeeper                     of the store, for connector
"""

import json
import os
import subprocess
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import tms
from integration.soak.ledger import Ledger
from integration.soak.readers import offline, over_http, spark
from integration.soak.readers.client import TIMEOUT_S, Reader
from integration.soak.readers.writing import Place, write
from tms.errors import TopicNotFound

Row = list[Any]
Task = dict[str, Any]


def online(task: Task) -> None:
    """Read through the service."""
    place, ledger = _begun(task)
    with tms.connect(place.url, timeout_s=TIMEOUT_S) as bus:
        for topic in place.topics:
            _online(place, ledger, bus, topic)


def without_service(task: Task) -> None:
    """Read the store, once its service has ended."""
    place, ledger = _begun(task)
    data = task["data"]
    _guarded(ledger, "opened", lambda: offline.opened(place, data))
    if not data.startswith("hbase://"):
        _guarded(ledger, "fsck", lambda: _told(ledger, offline.fsck(data)))


def with_spark(task: Task) -> None:
    """Read through the service, with Spark."""
    place, ledger = _begun(task)
    topics = [name for name, of in place.topics.items() if not of.get("dead")]
    store = task["data"] if task["data"].startswith("hbase://") else ""
    _guarded(ledger, "spark", lambda: _told(ledger, spark.read(place, topics, store)))


def with_connector(task: Task) -> None:
    """Read the regions of an HBase, with the connector of Spark 3.5, which has an environment of
    its own."""
    _, ledger = _begun(task)
    root = Path(__file__).parents[3]
    python = root / ".venv-spark35" / "bin" / "python"
    if not python.exists():
        ledger.wrong("the connector reads in an environment of its own; first: make env-spark35")
        return
    command = [str(python), "-m", "integration.soak.readers.connector", json.dumps(task)]
    paths = {"PYTHONPATH": f"{root}{os.pathsep}{root / 'python'}"}
    if subprocess.run(command, cwd=root, env={**os.environ, **paths}, check=False).returncode:
        ledger.wrong("the connector failed, see its log")


PASSES = {
    "online": online,
    "offline": without_service,
    "spark": with_spark,
    "connector": with_connector,
}


def _begun(task: Task) -> tuple[Place, Ledger]:
    place = Place(Path(task["directory"]), task["url"], task["topics"], task["seed"])
    name = f"readers-{task['pass']}"
    return place, Ledger(place.directory / f"{name}.ledger", name)


def _online(place: Place, ledger: Ledger, bus: tms.Bus, topic: str) -> None:
    truth: list[Row] = []
    try:
        place.topics[topic]["partitions"] = bus.describe_topic(topic).settings.partitions
    except TopicNotFound:  # a topic of dead letters before the first one
        write(place, "fetch-json", topic, [])
        return

    began_ms = int(time.time() * 1_000)

    def truly() -> None:
        truth.extend(over_http.fetch_json(place.url, topic))
        write(place, "fetch-json", topic, truth, at_ms=began_ms)

    _guarded(ledger, f"fetch-json of {topic}", truly)
    for name, one in _readers(place, bus, topic, truth).items():
        _guarded(ledger, f"{name} of {topic}", one)


def _readers(
    place: Place, bus: tms.Bus, topic: str, truth: list[Row]
) -> dict[str, Callable[[], object]]:
    random = Random(f"{place.seed}/{topic}/pages")
    reader = Reader(place, bus, topic, truth)
    of = place.topics[topic]
    limit, size = int(2 ** random.uniform(6, 13)), int(2 ** random.uniform(14, 22))

    def small() -> None:
        rows = over_http.fetch_json(place.url, topic, limit=limit, bytes_max=size)
        write(place, f"fetch-json, limit={limit}, bytes_max={size}", topic, rows)

    def arrow() -> None:
        rows = over_http.fetch_arrow(place.url, topic, limit=limit)
        write(place, f"fetch-arrow, limit={limit}", topic, rows)

    def poll() -> None:
        rows = list(over_http.poll_cdap(place.url, topic, limit))
        stored = over_http.fetch_json(place.url, topic, isolation="uncommitted")
        write(place, "cdap poll", topic, over_http.committed(rows, stored, truth))

    readers: dict[str, Callable[[], object]] = {
        "fetch-json small": small,
        "fetch-arrow": arrow,
        "consumers": reader.consumers,
        "bus.fetch": reader.fetches,
        "asyncio": lambda: reader.asynchronous("asyncio"),
        "uvloop": lambda: reader.asynchronous("uvloop"),
        "by partition": reader.by_partition,
        "group": reader.group,
        "queue": reader.queue,
    }
    if of.get("keys"):
        readers["view"] = reader.view
        readers["where"] = reader.filtered
    if of.get("delayed"):
        readers["delayed"] = reader.waiting
    if of["partitions"] == 1 and not of.get("tombstones", True):
        readers["cdap"] = poll
    return readers


def _told(ledger: Ledger, found: list[str]) -> None:
    for what in found:
        ledger.wrong(what)


def _guarded(ledger: Ledger, name: str, read: Callable[[], object]) -> None:
    ledger.note("reading", reader=name)
    try:
        read()
    except Exception as error:
        where = "".join(traceback.format_tb(error.__traceback__)[-1:]).strip()
        ledger.wrong(f"{name} raised {type(error).__name__}: {error} ({where})")
