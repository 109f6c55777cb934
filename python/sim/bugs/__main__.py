"""`python -m sim.bugs [--all]`: search for a seed for each planted bug that its seed no longer
finds, or for all, and write `sim/corpus/planted.txt`; exits with 1 if no seed finds some bug."""

import sys

from sim.bugs.planted import PLANTED, renew, seeds
from sim.corpus.seeds import prepare


def main(arguments: list[str]) -> int:
    """Renew the file, and print the changes."""
    for line in renew("--all" in arguments):
        print(line, flush=True)
    missing = len(PLANTED) - len(seeds())
    print(f"{len(PLANTED)} planted bugs, {missing} without a seed")
    return 1 if missing else 0


if __name__ == "__main__":
    prepare()
    sys.exit(main(sys.argv[1:]))
