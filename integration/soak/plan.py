"""The plan of one round, drawn from the seed and the round's number.

Round 0 and every third one after it have the default settings. The others draw the service's bounds
log-uniformly, from absurdly small to the default.
"""

import math
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from integration.soak.load.worker import Job

MIB = 1 << 20
# flag: (smallest, default)
BOUNDS: dict[str, tuple[float, float]] = {
    "--cache-bytes": (1, 64 * MIB),
    "--segment-bytes": (MIB, 256 * MIB),
    "--segment-ms": (1_000, 86_400_000),
    "--fetch-bytes-max": (1_024, 8 * MIB),
    "--fetch-bytes-in-flight-max": (MIB, 10 * MIB),
    "--in-flight-bytes": (32 * MIB, 128 * MIB),
    "--queue-bytes": (32 * MIB, 32 * MIB),
    "--limits-threads": (1, 8),
    "--engine-threads": (1, 8),
    "--cleaner-interval-s": (0.1, 30.0),
    "--compaction-dirty-ratio": (0.01, 0.5),
    "--compaction-share": (0.1, 1.0),
    "--compaction-keys-max": (1_000, 500_000),
    "--write-buffer-bytes": (MIB, 8 * MIB),
    "--chunk-bytes": (1_024, 60_000),
}
_WHOLE = {"--cleaner-interval-s", "--compaction-dirty-ratio", "--compaction-share"}


class Fault(NamedTuple):
    """A fault `at_s` seconds after the load began."""

    at_s: float
    what: str  # kill | stop | pause | part | cut | kill-job
    seconds: float = 0.0
    of: float = 0.0  # the job, or process of the service, as a share of all


@dataclass(slots=True)
class Plan:
    """The plan of one round. Topics are by name; `settings` are those of their creation, the other
    fields are for the load."""

    name: str
    flags: list[str]
    load_s: float
    topics: dict[str, dict[str, Any]]
    jobs: list[tuple[str, str, bool, dict[str, Any]]]  # kind, name, behind the proxy, options
    faults: list[Fault]
    lossy: float
    embedded: dict[str, Any]
    queues: dict[str, dict[str, Any]] = field(default_factory=dict)  # TOPIC/GROUP: settings
    groups: dict[str, dict[str, Any]] = field(default_factory=dict)
    copying: tuple[float, ...] = ()  # seconds after which a driver of Spark is killed
    workers: int = 0  # 0: the service is one process
    instances: int = 0  # 0: the service is alone
    skew_s: int = 0  # how far ahead the clock of the last instance is
    descriptors: int = 0  # limit of each process of the service; 0: that of this process

    @property
    def place(self) -> str:
        """The processes of the service, in words; empty if it is one without limits."""
        drawn = ("workers", "instances", "skew_s", "descriptors")
        return "".join(f", {name} {value}" for name in drawn if (value := getattr(self, name)))


class Size(NamedTuple):
    """The size of a round: seconds of load, the number of jobs at once (0: all), the share of
    messages and bytes of each job, and the number of instances (0: the service is alone)."""

    load_s: float
    jobs: int = 0
    share: float = 1.0
    instances: int = 0


def draw(seed: str, number: int, size: Size) -> Plan:
    """The plan of a round."""
    load_s = size.load_s
    random = Random(f"{seed}/{number}")
    default = number % 3 == 0
    flags = [] if default else _flags(random)
    topics = _topics(random)
    queues: dict[str, dict[str, Any]] = {
        "jobs/workers": {
            "lease_s": round(random.uniform(2, 5), 2),
            "deliveries_max": random.choice((0, 4, 16)),
            "backoff_first_s": 0.1,
            "backoff_max_s": 1.0,
        },
        "tasks/ordered": {
            "lease_s": round(random.uniform(2, 5), 2),
            "deliveries_max": random.choice((0, 16)),
            "backoff_first_s": 0.1,
            "backoff_max_s": 0.5,
            "ordered_by": "key",
        },
    }
    groups: dict[str, dict[str, Any]] = {
        "readers": {"topic": "mixed", "delivery": "at-least-once"},
        "once": {"topic": "mixed", "delivery": "at-most-once"},
        "exact": {"topic": "paid", "delivery": "exactly-once", "output": "made"},
    }
    plan = Plan(
        f"{seed}/{number}",
        flags,
        load_s,
        topics,
        _jobs(random, queues, groups),
        _faults(random, load_s, bool(size.instances)),
        random.choice((0.01, 0.05, 0.1)),
        _embedded(random, default),
        queues,
        groups,
        (random.uniform(8, 16), random.uniform(8, 24)),
    )
    _place(plan, size.instances, Random(f"{seed}/{number} place"))
    _shrink(plan, size, Random(f"{seed}/{number} size"))
    return plan


def _place(plan: Plan, instances: int, random: Random) -> None:
    """Draw the processes of the service, and their limit of open files."""
    plan.instances = instances
    plan.skew_s = random.choice((0, 0, -3, 3)) if instances else 0
    plan.workers = random.choice((0, 0, 2)) if not instances else 0
    plan.descriptors = random.choice((0, 256, 1_024))
    plan.embedded["descriptors"] = random.choice((0, 256, 1_024))


def _shrink(plan: Plan, size: Size, random: Random) -> None:
    """Leave as many jobs as fit the size, one of them a publisher, and their share of the load."""
    if size.jobs:
        first, *others = plan.jobs
        kept = random.sample(range(len(others)), min(size.jobs - 1, len(others)))
        plan.jobs = [first, *(others[number] for number in sorted(kept))]
    if size.share != 1:
        for options in (*(job[3] for job in plan.jobs), plan.embedded):
            for name in ("messages", "bytes", "lone"):
                if name in options:
                    options[name] = max(1, int(options[name] * size.share))


def job(plan: Plan, kind: str, name: str, url: str, directory: str, options: dict[str, Any]) -> Job:
    """A job of a plan; `name` includes its incarnation."""
    return Job(kind, name, plan.name, url, directory, f"{directory}/stop", plan.topics, options)


def _flags(random: Random) -> list[str]:
    flags = []
    for flag, (low, high) in BOUNDS.items():
        value = math.exp(random.uniform(math.log(low), math.log(high)))
        flags += [flag, str(round(value, 3) if flag in _WHOLE else int(value))]
    return flags


def _topics(random: Random) -> dict[str, dict[str, Any]]:
    def topic(partitions: int, uses: dict[str, Any], **settings: Any) -> dict[str, Any]:
        settings = {
            "partitions": partitions,
            "durability": random.choice(("synced", "written", "written")),
            "partitioner": random.choice(("crc32c", "murmur2")),
            **settings,
        }
        return {"partitions": partitions, "settings": settings, **uses}

    many = random.randint(2, 4)
    return {
        "lone": topic(1, {"lone": True}, retention_bytes=40 * MIB),
        "mixed": topic(many, {"published": True, "keys": 50, "followed": True}),
        "single": topic(1, {"published": True, "keys": 20, "followed": True, "tombstones": False}),
        "kept": topic(
            random.randint(1, 2), {"published": True, "followed": True}, retention_bytes=4 * MIB
        ),
        "newest": topic(
            random.randint(1, 2),
            {"published": True, "keys": 200, "keyless": 0.0, "followed": True},
            cleanup="compact",
        ),
        "erased": topic(
            random.randint(1, 3), {"erased": True, "published": True, "keys": 30, "followed": True}
        ),
        "cut": topic(
            random.randint(1, 3), {"erased": True, "published": True, "keys": 30, "followed": True}
        ),
        "orders": topic(random.randint(1, 2), {"committed": True, "keys": 40, "followed": True}),
        "paid": topic(random.randint(1, 3), {"committed": True, "published": True, "keys": 40}),
        "rows": topic(1, {"table": True}),
        "later": topic(random.randint(1, 2), {"delayed": True, "keys": 20}),
        "jobs": topic(random.randint(1, 2), {"published": True, "keys": 40}),
        "tasks": topic(random.randint(1, 2), {"published": True, "keys": 15, "keyless": 0.1}),
        "made": topic(random.randint(1, 2), {}),
        "done": topic(1, {}),
        "copied": topic(2, {"copy_of": "paid"}),
        "elsewhere": topic(1, {"foreign": True, "published": True, "followed": True}),
        "renewed": topic(1, {"expiring": True}, retention=f"{random.randint(1, 2)}s"),
    }


def _jobs(
    random: Random, queues: dict[str, dict[str, Any]], groups: dict[str, dict[str, Any]]
) -> list[tuple[str, str, bool, dict[str, Any]]]:
    small = {"bytes_max": 4_000, "messages": 8_000, "bytes": 24 * MIB}
    bulk = {"bytes_max": 60_000, "messages": 8_000, "bytes": 96 * MIB, "ways": (1, 4, 4, 1)}
    jobs: list[tuple[str, str, bool, dict[str, Any]]] = [
        ("publish", "pub", False, bulk),
        ("publish", "lossy", True, small),
        ("publish-async", "aio", random.random() < 0.5, {**small, "loop": "asyncio"}),
        ("publish-async", "uvl", random.random() < 0.5, {**small, "loop": "uvloop"}),
        ("fork", "fork", random.random() < 0.3, {**small, "messages": 4_000}),
        ("commit", "tx", True, {**small, "messages": 4_000}),
        ("commit", "big", False, {**small, "messages": 4_000, "staged": 0.1, "bytes": 60 * MIB}),
        ("delay", "late", random.random() < 0.5, {**small, "messages": 2_000}),
        ("remove", "rm", False, {**small, "truncates": True}),
        ("foreign", "cdap", False, {**small, "messages": 400}),
        ("renew", "renew", False, {}),
        ("consume", "live0", False, {}),
        ("consume", "live1", False, {}),
    ]
    for name, of in groups.items():
        member = {"group": name, "session_s": random.choice((1.0, 2.0, 5.0)), **of}
        jobs += [("group", f"{name}{n}", random.random() < 0.3, member) for n in range(2)]
    for name in queues:
        topic, _, group = name.partition("/")
        work = {"topic": topic, "group": group, "output": "done"}
        jobs += [("queue", f"{group}{n}", random.random() < 0.3, work) for n in range(2)]
    return jobs


def _faults(random: Random, load_s: float, instances: bool) -> list[Fault]:
    count = max(1, round(load_s / 12))
    faults = []
    for _ in range(count):
        [what] = random.choices(("kill", "stop", "pause", "cut"), (4, 2, 1, 2))
        faults.append(Fault(random.uniform(2, load_s), what, random.uniform(0.2, 3)))
    for _ in range(round(load_s / 4)):
        faults.append(Fault(random.uniform(1, load_s), "kill-job", of=random.random()))
    if instances:  # each fault hits one of them, and may cut one off from HBase
        seconds, at_s = random.uniform(0.5, 6), random.uniform(2, load_s)
        faults = [fault._replace(of=random.random()) for fault in faults]
        faults.append(Fault(at_s, "part", seconds, random.random()))
    return sorted(faults, key=lambda fault: fault.at_s)


def _embedded(random: Random, default: bool) -> dict[str, Any]:
    options: dict[str, Any] = {"messages": 2_000, "bytes": 16 * MIB, "bytes_max": 4_000}
    options["lone"] = 40_000 if default else int(10 ** random.uniform(2, 4.3))
    options["kill_after_s"] = random.uniform(1, 20) if random.random() < 0.5 else None
    if not default:
        options["log"] = {
            "segment_bytes": int(2 ** random.uniform(12, 28)),
            "snapshot_bytes": int(2 ** random.uniform(12, 26)),
        }
        options["config"] = {
            "cache_bytes": int(2 ** random.uniform(0, 26)),
            "threads": random.randint(1, 8),
        }
    return options
