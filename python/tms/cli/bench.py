"""`tms bench`: how fast this machine publishes, replays and answers, in a few seconds.

* Works on a topic of its own that it deletes afterwards, also when it is interrupted.
* The numbers say what the machine does now; the comparisons of the README come from `make bench`.
"""

import os
import platform
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from tms.cli.output import Format, facts_text, table_text, write
from tms.cli.parameters import SIZE, one_of, session_command
from tms.cli.session import Session
from tms.errors import TMSError
from tms.model.topic import PARTITIONS_MAX, Durability, parse_durability

if TYPE_CHECKING:
    import tms

_MB = 1_000_000
_CALL_MESSAGES = 1_000


@session_command("bench")
def command(
    session: Session,
    messages: Annotated[int, "-n", click.IntRange(1, 100_000_000)] = 200_000,
    size: Annotated[int, "-s", SIZE, "Bytes of a message. [1024]"] = 1024,
    lone: Annotated[int, click.IntRange(10, 1_000_000), {"show_default": True}] = 2_000,
    partitions: Annotated[int, click.IntRange(1, PARTITIONS_MAX), {"show_default": True}] = 1,
    durability: Annotated[str, one_of(Durability), {"show_default": True}] = "written",
) -> None:
    """Measure publish, replay and the latency of lone messages.

    Against the service of --url, or in a data directory: --data, or a temporary one.
    """
    with _bench_bus(session) as (bus, where):
        topic = f"bench-{secrets.token_hex(6)}"
        level = parse_durability(durability)
        bus.create_topic(topic, partitions=partitions, durability=level, retention="1h")
        try:
            run = _Run(session, bus, topic, size)
            results = [run.publish(messages), run.replay(messages), run.lone(lone)]
        finally:
            with suppress(TMSError):
                bus.delete_topic(topic)
    facts = {
        "where": where,
        "durability": durability,
        "partitions": partitions,
        "message_bytes": size,
        **hardware(),
    }
    document = {**facts, "results": results}
    if session.format is Format.TABLE:
        write(facts_text(facts) + "\n" + table_text(results))
    else:
        session.show(document, [{**facts, **result} for result in results])


@contextmanager
def _bench_bus(session: Session) -> Iterator[tuple["tms.Bus", str]]:
    if session.meant.named:
        with session.bus(create=True) as bus:
            yield bus, session.where()
        return
    with (
        tempfile.TemporaryDirectory(prefix="tms-bench-") as directory,
        session.embedded(Path(directory) / "data", create=True) as bus,
    ):
        yield bus, "a temporary data directory, in this process"


class _Run:
    """The measurements on one topic; each returns a row of the table."""

    def __init__(self, session: Session, bus: "tms.Bus", topic: str, size: int) -> None:
        self._clock = session.clock
        self._session = session
        self._bus = bus
        self._topic = topic
        self._value = os.urandom(size)

    def publish(self, count: int) -> dict[str, Any]:
        """One producer, as fast as it can: many messages with each call."""
        self._session.say(f"publishing {count:,} messages of {len(self._value):,} bytes")
        began_s = self._clock.monotonic_s()
        with self._bus.producer(self._topic) as producer:
            for begin in range(0, count, _CALL_MESSAGES):
                producer.send_many([self._value] * min(_CALL_MESSAGES, count - begin))
        return self._rate("publish", count, self._clock.monotonic_s() - began_s)

    def replay(self, count: int) -> dict[str, Any]:
        """One consumer, from the first message to the last, batch by batch."""
        self._session.say("reading them back")
        began_s = self._clock.monotonic_s()
        with self._bus.consumer(self._topic, start="earliest", stop_at_end=True) as consumer:
            found = sum(len(batch.values()) for batch in consumer.batches())
        if found != count:
            raise TMSError(f"{count} messages were published, {found} came back.")
        return self._rate("replay", count, self._clock.monotonic_s() - began_s)

    def lone(self, count: int) -> dict[str, Any]:
        """One message after the other, each acknowledged before the next."""
        self._session.say(f"publishing {count:,} messages one by one")
        took_ms = []
        for _ in range(count):
            began_s = self._clock.monotonic_s()
            self._bus.publish(self._topic, self._value)
            took_ms.append((self._clock.monotonic_s() - began_s) * 1000)
        row = self._rate("lone publish", count, sum(took_ms) / 1000)
        took_ms.sort()
        for name, share in (("p50_ms", 0.5), ("p99_ms", 0.99), ("p999_ms", 0.999)):
            row[name] = round(took_ms[min(int(count * share), count - 1)], 4)
        return row

    def _rate(self, workload: str, count: int, seconds: float) -> dict[str, Any]:
        return {
            "workload": workload,
            "messages": count,
            "seconds": round(seconds, 3),
            "messages_per_s": round(count / seconds),
            "mb_per_s": round(count * len(self._value) / seconds / _MB, 1),
            "p50_ms": None,
            "p99_ms": None,
            "p999_ms": None,
        }


def hardware() -> dict[str, Any]:
    """The environment of a run: version, processor, cores, memory, system, Python."""
    from tms.runtime.version import VERSION

    return {
        "version": VERSION,
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_mib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
    }


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"
