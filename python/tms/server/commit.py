"""POST /v2/transactions/{id}/commit: everything of a transaction in one request.

* Memory for the body is reserved before it is read; blocks are views of the body, and the engine
  fills in their headers where they stand.
* A commit that the engine finishes at once never leaves the event loop's thread. Commits that take
  long to read or check are done one at a time.
"""

from collections.abc import Sequence
from functools import partial

from tms.api import commits, routes
from tms.log.pending import Pending
from tms.model.message import Buffer
from tms.model.topic import Durability
from tms.model.transaction import Commit, CommitResult
from tms.server.http.exchange import Exchange
from tms.server.http.request import content_type, parameters
from tms.server.problems import JSON_HEAD
from tms.server.service import Service, are_quick

_COMMITS_ONLY = (routes.COMMIT,)
_INLINE_BYTES = 1 << 20  # more is stored by another thread
_HEAD_INLINE_BYTES = 32 << 10  # a larger head is read by another thread


class Committing:
    """Answers commits."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._engine = service.engine

    async def __call__(self, exchange: Exchange, varying: Sequence[bytes]) -> None:
        """Raises what kept it from being done; nothing is ever seen of it then."""
        service = self._service
        parameters(exchange.query, ())
        text = varying[0].decode("latin-1")
        transaction = 0 if text == routes.NEW_TRANSACTION else commits.transaction_id(text)
        content_type(exchange.headers.get(b"content-type", b""), _COMMITS_ONLY)
        async with service.received(exchange) as body:
            service.metrics.bytes_in += len(body.data)
            result = await self._commit(exchange, body.data, transaction)
        if service.guard is not None:  # another principal may have committed it before
            service.guard.decisions.require_seen(exchange, result)
        await service.respond(exchange, routes.OK, JSON_HEAD, commits.encode_result(result))

    async def _commit(self, exchange: Exchange, body: Buffer, transaction: int) -> CommitResult:
        service = self._service
        decode = partial(self._decoded, exchange, body, transaction)
        if commits.head_bytes(body) > _HEAD_INLINE_BYTES:
            pending = await service.in_turn(service.checking, lambda: self._submit(decode()))
        else:
            commit = decode()
            if not are_quick([new for _, new in commit.blocks]):
                pending = await service.in_turn(service.checking, self._submit, commit)
            elif len(body) <= _INLINE_BYTES and self._is_immediate(commit):
                pending = self._submit_here(exchange, commit)
            else:
                pending = await service.in_thread(self._submit, commit)
        return (await service.outcome(pending))[0]

    def _is_immediate(self, commit: Commit) -> bool:
        """True if the commit waits for nothing: its intention need not be journaled first, nor the
        log be read."""
        if commit.transaction_id or any(block.new.expect is not None for block in commit.blocks):
            return False
        immediate = self._service.engine.immediate
        return immediate is Durability.WRITTEN and self._engine.transactions.is_ready(commit)

    def _submit_here(self, exchange: Exchange, commit: Commit) -> Pending[CommitResult]:
        """Commit in the event loop's thread, which syncs for a client that asks alone."""
        partitions = {(topic, new.partition) for topic, new in commit.blocks}
        syncs = len(partitions) + len(commit.positions) + len(commit.settlements)
        submit = partial(self._engine.transactions.submit_commit, commit, waits=False)
        return self._service.inline_sync.write(exchange, syncs, submit)

    def _submit(self, commit: Commit) -> Pending[CommitResult]:
        return self._engine.transactions.submit_commit(commit, Durability.SYNCED)

    def _decoded(self, exchange: Exchange, body: Buffer, transaction: int) -> Commit:
        commit = commits.decode_commit(body, transaction)
        for topic in {topic for topic, _ in commit.blocks}:
            topic.require_writable()
        if self._service.guard is not None:
            self._service.guard.decisions.require_commit(exchange, commit)
        return commit
