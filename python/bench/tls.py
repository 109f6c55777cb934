"""The cost of TLS: publishing and replaying through HTTP, with and without it.

* As in `throughput`: one producer, durability `written`, the client's own batching, both processes
  on one machine, which therefore does both the encrypting and the decrypting.
* The certificate's key is P-256, the cipher is negotiated (AES-256-GCM).
"""

from functools import partial

from bench.report import Goal, Report, Sample, Samples, measured, ratio
from bench.targets import TOPIC, Service, Setup, values
from bench.throughput import AT_ONCE, publish, replay
from tests.tls_kit import Authority, Certificate

SIZE = 1_024


def run(setup: Setup, report: Report) -> None:
    """Each run publishes and replays both ways, one after the other."""
    report.title("Publishing and replaying 1 KiB through HTTP, over TLS beside plain")
    count = 100_000 if setup.quick else 400_000
    with setup.directory() as path:
        authority = Authority(path)
        certificate = authority.sign()
        published: Samples = {"plain": [], "TLS": []}
        replayed: Samples = {"plain": [], "TLS": []}
        for _ in range(setup.runs):
            for name, tls in (("plain", None), ("TLS", (authority, certificate))):
                one, other = _publish_and_replay(setup, count, tls)
                published[name].append(one)
                replayed[name].append(other)
    for what, samples in (("publish", published), ("replay", replayed)):
        report.rates("tls", f"{what} 1 KiB", samples)
        report.line(
            "tls",
            f"{what} 1 KiB, TLS ÷ plain",
            ratio(samples, "TLS", "plain"),
            "×",
            Goal(at_least=0.6) if what == "publish" else None,
            samples,
        )


def _publish_and_replay(
    setup: Setup, count: int, tls: tuple[Authority, Certificate] | None
) -> tuple[Sample, Sample]:
    flags: list[str] = []
    if tls is not None:
        cert, key = tls[1].pair
        flags = ["--tls-cert", cert, "--tls-key", key]
    ca = None if tls is None else tls[0].ca
    with setup.directory() as path, Service.start(path, *flags, ca=ca) as target:
        target.bus.create_topic(TOPIC, durability="written")
        cells = values(SIZE)
        parts = [cells[at : at + AT_ONCE] for at in range(0, len(cells) - AT_ONCE + 1, AT_ONCE)]
        publish(target.bus, parts, AT_ONCE)  # warm up connections, first segment, first database
        return (
            measured(partial(publish, target.bus, parts, count), target.pid),
            measured(partial(replay, target.bus, count), target.pid),
        )
