"""Bugs that TMS once had and that runs of the simulation seldom or never reach. Each names the test
that finds it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from sim.replacing import Replacement
from tms.client import delivery
from tms.client.cursor import Cursor
from tms.cluster.identity import TakenNumbers
from tms.delayed.stored_queue import StoredDelayQueue
from tms.engine.engine import Engine
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
from tms.transactions.edits import Began, Intended
from tms.transactions.journal import TransactionJournal
from tms.transactions.manager import TransactionManager
from tms.transactions.tables import Tables
from tms.transactions.transactions import Transactions
from tms.transactions.uncommitted import UncommittedMessages


def _renew_in_doubt() -> list[Replacement]:
    """A forgotten producer begins anew, whatever the outcome of its last block."""
    return [(delivery, "is_in_doubt", lambda error: False)]


def _end_at_an_empty_page() -> list[Replacement]:
    """A client takes a page without messages for the end of the partition."""
    right = Cursor._until_the_end

    def until_the_end(self: Cursor, found: Any) -> Any:
        wanted = right(self, found)
        if not found.batches:
            for partition in found.next:
                self._fetched.pop(partition, None)
        return wanted

    return [(Cursor, "_until_the_end", until_the_end)]


def _wake_nobody_at_a_reload() -> list[Replacement]:
    """A follower that waits for a transaction is not told when a reload of the journal shows that
    it has ended."""
    return [(TransactionManager, "_on_reload", lambda self: self._reloaded())]


def _end_at_a_trimmed_page() -> list[Replacement]:
    """A page that truncation empties is taken for the end of the partition."""
    right = PartitionReader._found

    def found(self: PartitionReader, blocks: Any, *more: Any) -> Any:
        read = right(self, blocks, *more)
        return read._replace(reached=read.end) if not read.blocks else read

    return [(PartitionReader, "_found", found)]


def _bar_nothing() -> list[Replacement]:
    """A foreign transaction that was invalidated here may publish again."""
    return [(TransactionManager, "bar", lambda self, pointer: None)]


def _forget_what_was_under_way() -> list[Replacement]:
    """An append that was in flight when its foreign transaction was invalidated stays."""
    return [(UncommittedMessages, "check_barred", lambda self, *args: None)]


def _begin_and_intend_apart() -> list[Replacement]:
    """The journal notes the begin of a one-request commit, and its intent, as two edits."""
    right = TransactionJournal.note

    def note(self: TransactionJournal, edit: Any) -> None:
        if not (isinstance(edit, Began) and edit.intended):
            right(self, edit)
            return
        right(self, msgspec.structs.replace(edit, intended=False))
        right(self, Intended(edit.id))

    return [(TransactionJournal, "note", note)]


def _put_back_twice() -> list[Replacement]:
    """The caller of a failed commit returns its deliveries to the queue a second time."""
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
    """Messages that were read ahead are handed out although they are gone by now."""
    return [(Scanner, "drop_gone", lambda self, kept: False)]


def _block_keys_for_good() -> list[Replacement]:
    """Free keys are looked up before messages that prove to be gone are settled."""

    def take(self: OpenQueue, receive: Any, reread: Any, durability: Any) -> Any:
        gone = self.state.settle_gone((number, each.gone) for number, each in reread)
        for number, each in reread:
            receive.take_again(number, each)
        if not any(each.left for _, each in reread):
            receive.take_new(self._scanner)
        self.redelivered += receive.again
        edits = [*gone, *receive.edits]
        return self._add(edits, durability, receive.now_ms) if edits else None

    right = KeyOrder.add_all

    def add_all(self: KeyOrder, looked_at: Any) -> list[int]:
        right(self, looked_at)
        return []

    return [(OpenQueue, "_take", take), (KeyOrder, "add_all", add_all)]


def _begin_in_two_steps() -> list[Replacement]:
    """A repeated commit does not find the first attempt, which still looks at the log."""
    right = Transactions.submit_commit

    class Forgetful(dict[Any, Any]):
        def setdefault(self, name: Any, answer: Any = None) -> Any:
            return answer

    def submit_commit(self: Transactions, *args: Any, **more: Any) -> Any:
        self._attempts = Forgetful()
        return right(self, *args, **more)

    return [(Transactions, "submit_commit", submit_commit)]


def _scan_as_it_comes() -> list[Replacement]:
    """A scan outside of a transaction reads each row when it gets there."""
    right = Tables.scan

    def scan(self: Tables, table: str, start: bytes, stop: Any, snapshot: Any = None) -> Any:
        row = next(rows := right(self, table, start, stop, snapshot), None)
        while row is not None:
            yield row
            rows = rows if snapshot else right(self, table, row[0] + b"\0", stop)
            row = next(rows, None)

    return [(Tables, "scan", scan)]


def _answer_though_replaced() -> list[Replacement]:
    """An engine that no longer owns the store goes on answering."""
    return [(Engine, "confirm_owner", lambda self: None)]


def _count_after_deleting() -> list[Replacement]:
    """After a failure moved entries are deleted first and counted then."""
    right = StoredDelayQueue._moved

    def moved(self: StoredDelayQueue) -> Any:
        gone, messages = right(self)
        self.delete(gone)
        return [], messages

    return [(StoredDelayQueue, "_moved", moved)]


def _prepare_without_holding() -> list[Replacement]:
    """Other commits may change the positions that a prepared commit of a shard is about to
    change."""
    return [
        (Positions, "hold", lambda self, id, moves: self.prepared.setdefault(id, [*moves])),
        (Positions, "are_held", lambda self, keys, id: True),
        (Positions, "end", _end_whatever_holds_it),
    ]


def _end_whatever_holds_it(self: Positions, id: int, committed: bool) -> None:
    for key, position in self.prepared.pop(id, ()) if committed else ():
        self.apply(key, position)


def _move_what_was_taken() -> list[Replacement]:
    """A commit that began before another owner took a position still moves it."""
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
    """A queue's dead letters go to any topic, without a grant on that topic."""

    def run(self: OperationEndpoint, exchange: Any, arguments: Any) -> Any:
        return self._work(**arguments)

    return [(OperationEndpoint, "_run", run)]


def _believe_a_proof_again() -> list[Replacement]:
    """A signed request between instances is accepted as often as it comes."""
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
        "test_transactions_repeated.py::test_a_commit_in_a_large_journal_write_is_done_once_over_a_"
        "crash[alone-token]",
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
        "test_queue_keys.py::test_an_erased_retry_unblocks_its_key_in_the_same_receive",
    ),
    "bar-nothing": Elsewhere(
        _bar_nothing,
        "test_transactions_elsewhere.py::test_nothing_more_is_stored_in_what_was_invalidated_here",
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
    "forget-what-was-under-way": Elsewhere(
        _forget_what_was_under_way,
        "test_transactions_elsewhere.py::test_an_append_under_way_while_its_transaction_is_"
        "invalidated_is_rolled_back",
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
        "test_position_holds.py::test_no_other_commit_moves_a_held_position",
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
    "renew-in-doubt": Elsewhere(
        _renew_in_doubt,
        "test_client_once.py::test_a_publish_in_doubt_whose_producer_is_forgotten_is_not_made_anew"
        "[_sync]",
    ),
    "wake-nobody-at-a-reload": Elsewhere(
        _wake_nobody_at_a_reload,
        "test_transactions_failures.py::test_reading_the_journal_again_wakes_readers_with_its_outcome",
    ),
}
