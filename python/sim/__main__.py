"""`python -m sim [--instances] SEED [SEED]`: replay one seed, or all from the first up to the
second, of one engine, or of the instances of a cluster."""

import sys

from sim.corpus.seeds import prepare
from sim.instances import ClusterWorld
from sim.simulation import run
from sim.world import Stuck, World
from tms.errors import TMSError


def main(arguments: list[str]) -> int:
    """Run the seeds; returns 1 if any run has findings."""
    of = ClusterWorld if "--instances" in arguments else World
    arguments = [one for one in arguments if one != "--instances"]
    first = int(arguments[0])
    last = int(arguments[1]) if len(arguments) > 1 else first
    bad = 0
    for seed in range(first, last + 1):
        try:
            outcome = run(seed, of=of)
        except (Stuck, TMSError) as stuck:
            print(f"seed {seed}: stuck: {stuck}")
            bad += 1
            continue
        if first == last:
            sys.stdout.buffer.write(outcome.history.encode())
        for finding in outcome.findings:
            print(f"seed {seed}: {finding.kind}: {finding.what}")
        bad += bool(outcome.findings)
    print(f"seeds {first} to {last}: {bad} with findings")
    return 1 if bad else 0


if __name__ == "__main__":
    prepare()
    sys.exit(main(sys.argv[1:]))
