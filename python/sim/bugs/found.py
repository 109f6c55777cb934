"""Bugs that TMS once had and that runs of the simulation seldom or never come by; a part of `bugs`.
Each has the test that finds it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from sim.replacing import Replacement
from tms.client.cursor import Cursor
from tms.cluster.identity import TakenNumbers
from tms.delayed.stored_queue import StoredDelayQueue
from tms.engine import Engine
from tms.groups.group_positions import GroupPositions
from tms.groups.positions import Positions
from tms.log.reader import PartitionReader
from tms.queues.key_order import KeyOrder
from tms.queues.partition import QueuePartitionState
from tms.queues.queue import OpenQueue
from tms.queues.reading import Scanner
from tms.server.http.progress import Phase
from tms.server.http.protocol import ClientConnection
from tms.server.operations import OperationEndpoint
from tms.tables.tables import Tables
from tms.transactions.edits import Began, Intended
from tms.transactions.journal import TransactionJournal
from tms.transactions.manager import TransactionManager
from tms.transactions.transactions import Transactions


def _end_at_an_empty_page() -> list[Replacement]:
    """A client takes a page without messages for the end."""
    right = Cursor._until_the_end

    def until_the_end(self: Cursor, found: Any) -> Any:
        wanted = right(self, found)
        if not found.batches:
            for partition in found.next:
                self._fetched.pop(partition, None)
            self.finished = not self._fetched
        return wanted

    return [(Cursor, "_until_the_end", until_the_end)]


def _wake_nobody_at_a_reload() -> list[Replacement]:
    """Who waits for a transaction that has ended by what the journal says, once it is read again,
    is not told."""
    return [(TransactionManager, "_on_reload", lambda self: self._reloaded())]


def _end_at_a_trimmed_page() -> list[Replacement]:
    """A page of which truncation leaves nothing is taken for the end."""
    right = PartitionReader._found

    def found(self: PartitionReader, blocks: Any, *more: Any) -> Any:
        read = right(self, blocks, *more)
        return read._replace(reached=read.end) if not read.blocks else read

    return [(PartitionReader, "_found", found)]


def _begin_and_intend_apart() -> list[Replacement]:
    """That a commit in one request began, and that it is under way, are two edits."""
    right = TransactionJournal.note

    def note(self: TransactionJournal, edit: Any) -> None:
        if not (isinstance(edit, Began) and edit.intended):
            right(self, edit)
            return
        right(self, msgspec.structs.replace(edit, intended=False))
        right(self, Intended(edit.id))

    return [(TransactionJournal, "note", note)]


def _put_back_twice() -> list[Replacement]:
    """What a failed commit lets go is put back once more by whoever asked for it."""
    again: dict[tuple[int, int], None] = {}
    return_dying, take_dying = QueuePartitionState.return_dying, QueuePartitionState.take_dying

    def put_back(self: QueuePartitionState, offsets: Any) -> None:
        offsets = list(offsets)
        again.update(((id(self), offset), None) for offset in offsets if offset in self.dying)
        return_dying(self, offsets)

    def take(self: QueuePartitionState, limit: int) -> list[int]:
        found = take_dying(self, limit)
        return found + [o for o in found if again.pop((id(self), o), self) is None]

    return [
        (QueuePartitionState, "return_dying", put_back),
        (QueuePartitionState, "take_dying", take),
    ]


def _hand_out_what_was_read_ahead() -> list[Replacement]:
    """What was read ahead is handed out though it is gone by now."""
    return [(Scanner, "drop_gone", lambda self, kept: False)]


def _block_keys_for_good() -> list[Replacement]:
    """Who is free is looked up before what turns out to be gone is settled."""

    def take(self: OpenQueue, taking: Any, found: Any, durability: Any) -> Any:
        gone = self.state.settle_gone((number, each.gone) for number, each in found)
        for number, each in found:
            taking.take_again(number, each)
        if not any(each.left for _, each in found):
            taking.take_new(self._scanner)
        self.redelivered += taking.again
        edits = [*gone, *taking.edits]
        return self._add(edits, durability) if edits else None

    right = KeyOrder.add_all

    def add_all(self: KeyOrder, looked_at: Any) -> list[int]:
        right(self, looked_at)
        return []

    return [(OpenQueue, "_take", take), (KeyOrder, "add_all", add_all)]


def _begin_in_two_steps() -> list[Replacement]:
    """Whoever repeats a commit is not told of the first attempt, which looks at the log."""
    right = Transactions.submit_commit

    class Forgetful(dict[Any, Any]):
        def setdefault(self, name: Any, answer: Any = None) -> Any:
            return answer

    def submit_commit(self: Transactions, *args: Any, **more: Any) -> Any:
        self._attempts = Forgetful()
        return right(self, *args, **more)

    return [(Transactions, "submit_commit", submit_commit)]


def _scan_as_it_comes() -> list[Replacement]:
    """A scan outside of a transaction shows each row as it is when it is come by."""
    right = Tables.scan

    def scan(self: Tables, table: str, start: bytes, stop: Any, snapshot: Any = None) -> Any:
        row = next(rows := right(self, table, start, stop, snapshot), None)
        while row is not None:
            yield row
            rows = rows if snapshot else right(self, table, row[0] + b"\0", stop)
            row = next(rows, None)

    return [(Tables, "scan", scan)]


def _answer_though_replaced() -> list[Replacement]:
    """Who does not own the store any more goes on answering."""
    return [(Engine, "confirm_owner", lambda self: None)]


def _count_after_deleting() -> list[Replacement]:
    """After a failure what was moved is deleted first and counted then."""
    right = StoredDelayQueue._moved

    def moved(self: StoredDelayQueue) -> Any:
        gone, messages = right(self)
        self.delete(gone)
        return [], messages

    return [(StoredDelayQueue, "_moved", moved)]


def _prepare_without_holding() -> list[Replacement]:
    """What a commit is about to change in a shard others change meanwhile."""
    return [
        (Positions, "hold", lambda self, id, moves: self.prepared.setdefault(id, [*moves])),
        (Positions, "are_held", lambda self, keys, id: True),
        (Positions, "end", _end_whatever_holds_it),
    ]


def _end_whatever_holds_it(self: Positions, id: int, committed: bool) -> None:
    for key, position in self.prepared.pop(id, ()) if committed else ():
        self.apply(key, position)


def _move_what_was_taken() -> list[Replacement]:
    """What began before somebody took a position moves it nevertheless."""
    right = GroupPositions._check

    def check(self: GroupPositions, changes: Any) -> None:
        self._takers = {one.key: one.owner for one in changes}
        right(self, changes)

    return [(GroupPositions, "_check", check)]


def _keep_trailers() -> list[Replacement]:
    """Trailers of a chunked body become headers of the connection's next request."""
    right = ClientConnection.on_header

    def on_header(self: ClientConnection, name: bytes, value: bytes) -> None:
        phase, self._progress.phase = self._progress.phase, Phase.HEAD
        try:
            right(self, name, value)
        finally:
            self._progress.phase = phase

    return [(ClientConnection, "on_header", on_header)]


def _publish_dead_letters_unasked() -> list[Replacement]:
    """A queue's dead letters go to any topic, without a grant on that."""

    def run(self: OperationEndpoint, exchange: Any, arguments: Any) -> Any:
        return self._work(**arguments)

    return [(OperationEndpoint, "_run", run)]


def _believe_a_proof_again() -> list[Replacement]:
    """A request that an instance has proven is believed as often as it comes."""
    return [(TakenNumbers, "take", lambda self, number, now_ms: True)]


class Elsewhere(NamedTuple):
    """A bug, and the test that finds it."""

    plant: Callable[[], list[Replacement]]
    test: str


ELSEWHERE: dict[str, Elsewhere] = {
    "answer-though-replaced": Elsewhere(
        _answer_though_replaced,
        "test_owner_service.py::test_an_embedded_engine_that_was_replaced_says_so",
    ),
    "begin-and-intend-apart": Elsewhere(
        _begin_and_intend_apart,
        "test_transactions_repeated.py::test_a_commit_in_a_large_write_of_the_journal_is_done_once_"
        "though_the_process_dies[alone-token]",
    ),
    "begin-in-two-steps": Elsewhere(
        _begin_in_two_steps,
        "test_transactions_repeated.py::test_a_commit_repeated_while_its_first_attempt_looks_at_the_"
        "log_is_done_once[alone-token]",
    ),
    "believe-a-proof-again": Elsewhere(
        _believe_a_proof_again, "test_identity.py::test_a_proof_is_good_once_in_any_order"
    ),
    "block-keys-for-good": Elsewhere(
        _block_keys_for_good,
        "test_queue_keys.py::test_a_key_goes_on_when_its_retry_is_gone_in_the_receive_that_sees_its_"
        "next_message",
    ),
    "count-after-deleting": Elsewhere(
        _count_after_deleting,
        "test_delay_crashes.py::test_the_count_outlives_a_power_loss_right_after_a_failed_move_was_"
        "looked_into",
    ),
    "end-at-a-trimmed-page": Elsewhere(
        _end_at_a_trimmed_page,
        "test_reading_gone.py::test_a_page_that_truncation_trims_to_nothing_is_not_the_end",
    ),
    "end-at-an-empty-page": Elsewhere(
        _end_at_an_empty_page,
        "test_reading_gone.py::test_only_offsets_tell_a_cursor_that_it_has_read_everything",
    ),
    "hand-out-what-was-read-ahead": Elsewhere(
        _hand_out_what_was_read_ahead,
        "test_queue_gone.py::test_what_was_read_ahead_is_not_handed_out_once_it_is_gone",
    ),
    "keep-trailers": Elsewhere(
        _keep_trailers,
        "test_server_sequences.py::test_a_request_leaves_nothing_to_the_next_one",
    ),
    "move-what-was-taken": Elsewhere(
        _move_what_was_taken,
        "test_position_holds.py::test_what_began_before_somebody_took_a_position_moves_it_no_more",
    ),
    "prepare-without-holding": Elsewhere(
        _prepare_without_holding,
        "test_position_holds.py::test_nobody_else_moves_what_is_held",
    ),
    "publish-dead-letters-unasked": Elsewhere(
        _publish_dead_letters_unasked,
        "test_guard.py::test_dead_letters_go_where_the_principal_may_publish",
    ),
    "put-back-twice": Elsewhere(
        _put_back_twice,
        "test_queue_dead.py::test_one_failing_write_makes_no_dead_letter_twice[10-False]",
    ),
    "scan-as-it-comes": Elsewhere(
        _scan_as_it_comes, "test_table.py::test_a_scan_does_not_show_what_commits_meanwhile"
    ),
    "wake-nobody-at-a-reload": Elsewhere(
        _wake_nobody_at_a_reload,
        "test_transactions_failures.py::test_who_waits_for_a_transaction_is_told_what_the_journal_"
        "says_once_it_is_read_again",
    ),
}
