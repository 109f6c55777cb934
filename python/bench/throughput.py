"""Messages a second: embedded beside raw LevelDB, HTTP beside embedded.

* One producer, durability `written`, the client's own batching; publishing ends when everything is
  acknowledged, a replay when every value was handed out as bytes.
* HTTP: producer or consumer in this process, the service in another one; CPU is that of both.
"""

from bench.report import Goal, Report, Sample, Samples, interleaved, measured, ratio
from bench.targets import TOPIC, Embedded, Service, Setup, raw_leveldb, values
from tms.block import encode
from tms.client.client import Bus
from tms.client.sending import BATCH_BYTES
from tms.model.keys import block_key

AT_ONCE = 1_000


def run(setup: Setup, report: Report) -> None:
    """Benchmarks 1 and 2."""
    _embedded_and_raw(setup, report)
    _embedded_and_http(setup, report)


def _embedded_and_raw(setup: Setup, report: Report) -> None:
    report.title("Publishing 1 KiB embedded, one producer, beside the same blocks in raw LevelDB")
    count = 100_000 if setup.quick else 400_000
    samples = interleaved(
        {
            "raw LevelDB": lambda: _raw(setup, count),
            "embedded": lambda: _embedded(setup, count, 1024, many=True)[0],
            "embedded, send by send": lambda: _embedded(setup, count, 1024, many=False)[0],
        },
        setup.runs,
    )
    report.rates("1", "publish 1 KiB", samples)
    report.line(
        "1",
        "embedded ÷ raw LevelDB",
        ratio(samples, "embedded", "raw LevelDB"),
        "×",
        Goal(at_least=0.6),
        samples,
    )
    report.line(
        "1",
        "send by send ÷ raw LevelDB",
        ratio(samples, "embedded, send by send", "raw LevelDB"),
        "×",
    )


def _embedded_and_http(setup: Setup, report: Report) -> None:
    report.title("Publishing and replaying through HTTP beside embedded, one client process")
    for size, count in ((100, 2_000_000), (1024, 400_000)):
        count //= 4 if setup.quick else 1
        publish: Samples = {"embedded": [], "HTTP": []}
        replay: Samples = {"embedded": [], "HTTP": []}
        for _ in range(setup.runs):
            for name, run_one in (("embedded", _embedded), ("HTTP", _http)):
                published, replayed = run_one(setup, count, size)
                publish[name].append(published)
                replay[name].append(replayed)
        report.rates("2", f"publish {size} B", publish)
        report.rates("2", f"replay {size} B", replay)
        for what, samples in (("publish", publish), ("replay", replay)):
            report.line(
                "2",
                f"{what} {size} B, HTTP ÷ embedded",
                ratio(samples, "HTTP", "embedded"),
                "×",
                Goal(at_least=0.5) if what == "publish" else None,
                samples,
            )


def _raw(setup: Setup, count: int) -> Sample:
    per_block = BATCH_BYTES // 1024
    cells = values(1024)
    blocks = [
        bytes(encode(cells[at : at + per_block]))
        for at in range(0, len(cells) - per_block + 1, per_block)
    ]

    with setup.directory() as path, raw_leveldb(path) as database:

        def work() -> int:
            put = database.put
            for number in range(count // per_block):
                put(block_key(number, per_block - 1), blocks[number % len(blocks)])
            return count // per_block * per_block

        return measured(work)


def _embedded(setup: Setup, count: int, size: int, many: bool = True) -> tuple[Sample, Sample]:
    with setup.directory() as path, Embedded.open(path) as target:
        return _publish_and_replay(target.bus, count, size, many)


def _http(setup: Setup, count: int, size: int) -> tuple[Sample, Sample]:
    with setup.directory() as path, Service.start(path) as target:
        return _publish_and_replay(target.bus, count, size, True, target.pid)


def _publish_and_replay(
    bus: Bus, count: int, size: int, many: bool, *pids: int
) -> tuple[Sample, Sample]:
    bus.create_topic(TOPIC, durability="written")
    cells = values(size)
    parts = [cells[at : at + AT_ONCE] for at in range(0, len(cells) - AT_ONCE + 1, AT_ONCE)]
    publish(bus, parts, AT_ONCE, many)  # warm up connections, first segment, first database

    def work() -> int:
        return publish(bus, parts, count, many)

    published = measured(work, *pids)

    def again() -> int:
        return replay(bus, count)

    return published, measured(again, *pids)


def publish(bus: Bus, parts: list[list[bytes]], count: int, many: bool = True) -> int:
    """Publish `count` messages with one producer, waiting for the acknowledgements at the end."""
    left = count
    with bus.producer(TOPIC) as producer:
        while left > 0:
            part = parts[left // AT_ONCE % len(parts)]
            if many:
                producer.send_many(part)
            else:
                for value in part:
                    producer.send(value)
            left -= len(part)
    return count - left


def replay(bus: Bus, count: int) -> int:
    """Read at least `count` messages from the start, each value as bytes."""
    got = 0
    with bus.consumer(TOPIC, stop_at_end=True) as consumer:
        for batch in consumer.batches():
            got += len(batch.values())
    assert got >= count, f"{got} of {count} messages came back"
    return got
