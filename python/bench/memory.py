"""The memory of the service: at rest, and while 2 GiB are published to it."""

from bench.report import Goal, Report
from bench.targets import TOPIC, Service, Setup, values
from bench.throughput import AT_ONCE, publish
from tms.engine.config import EngineConfig

REST_MIB = 120


def run(setup: Setup, report: Report) -> None:
    """Benchmark 5."""
    config = EngineConfig()
    allowed_mib = REST_MIB + (config.cache_bytes + config.in_flight_bytes) / (1 << 20)
    published_mib = 256 if setup.quick else 2_048
    report.title(f"Memory of the service, publishing {published_mib:,} MiB of 1 KiB messages")
    with setup.directory() as path, Service.start(path) as target:
        rest = target.memory_mib()
        report.line("5", "at rest", rest["VmRSS"], "MiB", Goal(at_most=REST_MIB))
        target.bus.create_topic(TOPIC, durability="written")
        cells = values(1024)
        parts = [cells[at : at + AT_ONCE] for at in range(0, 4 * AT_ONCE, AT_ONCE)]
        publish(target.bus, parts, published_mib << 10)
        peak = target.memory_mib()
        report.line("5", "peak while publishing", peak["VmHWM"], "MiB", Goal(at_most=allowed_mib))
        report.line("5", "afterwards", peak["VmRSS"], "MiB")
        report.line("5", "afterwards, without mapped files", peak["RssAnon"], "MiB")
