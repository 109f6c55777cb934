"""What one process does for all that share a store: transactions and positions, groups, queues,
delayed messages, and tables.

Each of them is a state over journals that this process owns, partitions of internal topics. It is
opened by taking these over and replaying them, whether another process had them before, or this one
was started.
"""

from random import Random

from tms.delayed.delayed import DelayedMessages
from tms.errors import TMSError
from tms.events import EventLog
from tms.groups.groups import LogGroups
from tms.queues import Queues
from tms.tables.tables import Tables
from tms.topics.topics import Topics
from tms.transactions.transactions import Transactions

CLOSING_EDITS, CLOSING_POSITIONS = 2_000, 1_000  # journals stay as long as that
_log = EventLog(__name__)


class Coordinator:
    """The states that one process keeps for all. Thread-safe. Raises what keeps a journal from
    being read."""

    def __init__(self, topics: Topics, lifetime_ms: int, random: Random) -> None:
        self.transactions = Transactions(topics, lifetime_ms)
        self.delayed = DelayedMessages(topics, self.transactions)
        self.tables = Tables(topics.store, self.transactions.manager)
        self.groups = LogGroups(topics, self.transactions)
        self.queues = Queues(topics, self.transactions, random)
        if not topics.store.shared:  # what is stored there outlives its machines
            self.queues.rewind()

    def start(self) -> None:
        """Begin in the background what is due at some time."""
        self.queues.start()
        self.delayed.start()

    def tidy(self) -> None:
        """What maintenance does each time."""
        self.transactions.tidy()
        self.groups.tidy()
        self.queues.shorten_journal()

    def stats(self, now_ms: int) -> dict[str, int]:
        """Counters and sizes, by the names of `EngineStats`."""
        transactions = self.transactions.stats(now_ms)
        return {
            "transactions_open": transactions.open,
            "transactions_oldest_ms": transactions.oldest_ms,
            "transactions_invalid": transactions.invalid,
            "partitions_blocked": transactions.partitions_blocked,
            "transactions_committed": transactions.committed,
            "delayed_waiting": self.delayed.waiting,
            "delayed_delivered": self.delayed.lateness.messages,
        }

    def warnings(self) -> list[str]:
        """What is wrong although it works, in sentences."""
        return [*self.delayed.warnings(), *self.queues.warnings()]

    def stop(self) -> None:
        """Nothing more is done in the background, and who waits for something here looks again."""
        self.queues.close()
        self.delayed.close()
        self.transactions.manager.wake_all()
        self.tables.close()

    def shorten_journals(self) -> None:
        """Let the next start be short; without that it only takes longer."""
        try:
            self.transactions.shorten_journals(CLOSING_EDITS, CLOSING_POSITIONS)
        except TMSError as error:
            _log.warning("shortening_failed", error=error.message)

    def doors(self) -> tuple[object, ...]:
        """Ways in, besides the engine's."""
        return self.transactions, self.queues, self.groups, self.delayed, self.tables
