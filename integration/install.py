"""Installs TMS in a namespace of HBase, as `tms hbase install` does."""

import hashlib
from pathlib import Path

import tms
from tms.runtime.clock import SystemClock
from tms.store.hbase.admin import Admin
from tms.store.hbase.coprocessor import VERSION
from tms.store.hbase.deployment import plan
from tms.store.hbase.deployment.deploy import Deployment
from tms.store.hbase.deployment.tables import Tuning
from tms.store.hbase.pool import HBasePlace

REFRESH_MS = 100
REGIONS = 2
_ANSWER_S = 60


def install(
    url: str, jar: Path | None = None, isolation: str | None = None, regions: int = REGIONS
) -> None:
    """Make namespace and tables, with the coprocessor if `jar` is given; `isolation` applies to
    readers that name none."""
    clock = SystemClock()
    admin = Admin(HBasePlace.parse(url), clock)
    try:
        deployment = Deployment(admin, clock, _ANSWER_S, lambda text: None)
        build, tuning = None, Tuning()
        if jar is not None:
            digest = hashlib.sha256(jar.read_bytes()).hexdigest()
            build = plan.Build(VERSION, f"file://{jar}", digest)
            tuning = Tuning(refresh=str(REFRESH_MS), isolation=isolation)
        state = deployment.state()
        steps = plan.install(state, build, tuning, regions, tms.__version__, clock.now_ms())
        deployment.carry_out(steps, lambda: False)  # the jar already is in place
    finally:
        admin.close()
