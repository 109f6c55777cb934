"""Which files a mutant of a room is made in, and which quick tests must notice it.

Quick means: no JVM, no other process, no simulation. Each room's tests end within about two
minutes on one core.
"""

from pathlib import Path
from typing import NamedTuple

PYTHON = Path(__file__).resolve().parents[1]


class Room(NamedTuple):
    """Globs of the code and of its tests, below `python/`."""

    code: tuple[str, ...]
    tests: tuple[str, ...]
    below: Path = PYTHON

    def files(self) -> list[Path]:
        """The source files, sorted."""
        return self._matching(self.code)

    def test_files(self) -> list[Path]:
        """The test files, sorted."""
        return self._matching(self.tests)

    def _matching(self, globs: tuple[str, ...]) -> list[Path]:
        return sorted({path for one in globs for path in self.below.glob(one)})


ROOMS = {
    "log": Room(
        ("tms/log/*.py",),
        (
            "tests/test_log_*.py",
            "tests/test_expecting.py",
            "tests/test_topic_*.py",
            "tests/test_reading_gone.py",
            "tests/test_transactions_[rs]*.py",
            "tests/test_owner.py",
            "tests/test_compaction.py",
            "tests/test_erasing*.py",
        ),
    ),
    "topic": Room(
        ("tms/topic/*.py",),
        (
            "tests/test_topic_*.py",
            "tests/test_engine.py",
            "tests/test_filters.py",
            "tests/test_expecting.py",
            "tests/test_log_[rsw]*.py",
            "tests/test_transactions_[irs]*.py",
            "tests/test_owner.py",
        ),
    ),
    "transactions": Room(
        ("tms/tx/*.py", "tms/transactions/*.py"),
        (
            "tests/test_tx_*.py",
            "tests/test_transactions*.py",
            "tests/test_client_transactions.py",
            "tests/test_requests_twice.py",
        ),
    ),
    "queues": Room(
        ("tms/queue/*.py", "tms/queues/*.py"),
        (
            "tests/test_queue_*.py",
            "tests/test_queues*.py",
            "tests/test_[bcs]*_queues.py",
            "tests/test_reading_gone.py",
        ),
    ),
    "groups": Room(
        ("tms/group/*.py", "tms/groups/*.py"),
        ("tests/test_group_*.py", "tests/test_groups*.py"),
    ),
    "delay": Room(
        ("tms/delay/*.py", "tms/delay/stored/*.py"),
        ("tests/test_delay.py", "tests/test_delay_[celm]*.py"),
    ),
    "compact": Room(
        ("tms/compact/*.py",),
        (
            "tests/test_compaction*.py",
            "tests/test_erasing*.py",
            "tests/test_delay_erasing.py",
            "tests/test_model_sparse.py",
        ),
    ),
    "leveldb": Room(
        ("tms/store/leveldb/*.py",),
        ("tests/test_store.py", "tests/test_store_[dprv]*.py", "tests/test_store_full.py"),
    ),
}
