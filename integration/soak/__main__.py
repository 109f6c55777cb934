"""`make soak SECONDS=n [SEED=s]`: rounds until the time is over; exits with 1 if one of them has
findings.

    python -m integration.soak --seconds 180 --seed 7
    python -m integration.soak --seed 7 --round 3      one round again: the same plan

The same seed draws the same settings, load and faults. Processes and their timing are real, so a
repeated round is similar, not identical.
"""

import argparse
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from integration.soak import hbase, plan
from integration.soak.rounds import Round

LOAD_S = 25.0
SPARK_FROM_S, SPARK_EVERY = 600.0, 8  # shorter runs leave the JVM out
_SHOWN = 40


def main() -> int:
    """Run the rounds; returns 1 if one has findings."""
    given = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the started processes, too
    began = time.monotonic()
    number = first = given.round or 0
    print(f"soak: seed {given.seed}, {given.seconds:.0f} s", flush=True)
    with ExitStack() as stack:
        stores = None
        if given.hbase or given.instances:
            directory = stack.enter_context(tempfile.TemporaryDirectory(dir=given.directory))
            stores = stack.enter_context(hbase.started(Path(directory)))
        while True:
            store = "" if stores is None else stores.make(f"soak{number}")
            zookeeper = "" if stores is None else stores.zookeeper
            if not _round(given, number, store, zookeeper):
                return 1
            number += 1
            if given.round is not None or time.monotonic() - began >= given.seconds:
                break
    print(
        f"soak: {number - first} rounds in {time.monotonic() - began:.0f} s, nothing found",
        flush=True,
    )
    return 0


def _round(given: argparse.Namespace, number: int, store: str, zookeeper: str) -> bool:
    """True if a round has no findings."""
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"round {number}, {time.monotonic() - began:4.0f} s: {text}", flush=True)

    drawn = plan.draw(
        given.seed, number, plan.Size(given.load, given.jobs, given.share, given.instances)
    )
    drawn.jobs = [one for one in drawn.jobs if one[0] not in given.leave_out]
    say(f"{'default settings' if not drawn.flags else ' '.join(drawn.flags)}{drawn.place}")
    directory = Path(tempfile.mkdtemp(prefix="tms-soak-", dir=given.directory))
    spark = given.spark or (given.seconds >= SPARK_FROM_S and number % SPARK_EVERY == 0)
    made = Round(drawn, directory, say, spark, store, zookeeper)
    try:
        findings = made.run()
    except BaseException:
        print(_again(given, number, directory), flush=True)
        raise
    finally:
        made.clean()
    say(f"{len(findings)} findings")
    if not findings:
        shutil.rmtree(directory)
        return True
    for finding in findings[:_SHOWN]:
        print(f"  {finding}")
    print(_again(given, number, directory), flush=True)
    return False


def _again(given: argparse.Namespace, number: int, directory: Path) -> str:
    words = f"--seed {given.seed} --round {number}"
    if given.load != LOAD_S:
        words += f" --load {given.load:g}"
    words += f" --jobs {given.jobs}" * bool(given.jobs)
    words += f" --share {given.share:g}" * (given.share != 1)
    words += f" --instances {given.instances}" * bool(given.instances)
    words += " --hbase" * given.hbase + " --spark" * given.spark
    words += "".join(f" --leave-out {kind}" for kind in given.leave_out)
    return (
        f"again: make soak SEED={given.seed} ROUND={number}"
        f"   (python -m integration.soak {words})\n"
        f"ledgers and readings: {directory / 'ledgers'}"
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m integration.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=180.0, help="how long, at least")
    parser.add_argument("--seed", default=os.environ.get("TMS_SOAK_SEED") or secrets.token_hex(4))
    parser.add_argument("--round", type=int, help="only this one")
    parser.add_argument("--load", type=float, default=LOAD_S, help="seconds of load in a round")
    parser.add_argument("--jobs", type=int, default=0, help="how many at once; 0: all")
    parser.add_argument("--share", type=float, default=1.0, help="of the messages of each job")
    parser.add_argument("--leave-out", action="append", default=[], help="a kind of job")
    parser.add_argument("--spark", action="store_true", help="Spark in every round")
    parser.add_argument("--hbase", action="store_true", help="on an HBase that is started for it")
    parser.add_argument("--instances", type=int, default=0, help="so many, on such an HBase")
    parser.add_argument("--directory", help="where the data is; a directory for temporary files")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
