"""POST /v2/transactions/{id}/commit: everything of a transaction in one request.

* Memory for the body is reserved before it is read; blocks are views of the body, and the engine
  fills in their headers where they stand.
* A commit that the engine finishes at once never leaves the event loop's thread.
"""

from tms.errors import TransactionNotFound
from tms.model.topic import Durability
from tms.model.transaction import Commit, CommitResult
from tms.server.http.exchange import Exchange
from tms.server.http.request import Body, content_type, header, parameters
from tms.server.service import Service
from tms.wire import commits, routes

_COMMITS_ONLY = (routes.COMMIT,)
_HEAD = f"content-type: {routes.JSON}\r\n".encode()
_INLINE_BYTES = 1 << 20  # more is stored by another thread


class Committing:
    """Answers commits."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._transactions = service.engine.transactions

    async def __call__(self, exchange: Exchange, id: bytes) -> None:
        """Raises what kept it from being done; nothing is ever seen of it then."""
        service = self._service
        parameters(exchange.scope["query_string"], ())
        text = id.decode("latin-1")
        transaction = 0 if text == routes.NEW_TRANSACTION else transaction_id(text)
        content_type(header(exchange, b"content-type"), _COMMITS_ONLY)
        service.require_open()
        body = Body(service.publishing, service.limits.body_bytes_max)
        try:
            await body.read(exchange)
            coding = header(exchange, b"content-encoding")
            if coding:
                await body.decompress(coding.lower(), service.threads)
            service.metrics.bytes_in += len(body.data)
            asked = commits.decode_commit(body.data, transaction)
            for topic, _ in asked.blocks:
                topic.require_writable()
            result = await self._commit(asked, len(body.data))
        finally:
            body.release()
        exchange.respond(routes.OK, _HEAD, commits.encode_result(result))

    async def _commit(self, asked: Commit, size: int) -> CommitResult:
        submit = self._transactions.submit_commit
        # Else its intention is journaled first, or the log is looked at.
        new = not asked.transaction_id and all(one.new.expect is None for one in asked.blocks)
        immediate = self._service.engine.immediate
        quick = immediate is Durability.WRITTEN and self._transactions.is_ready(asked)
        if new and quick and size <= _INLINE_BYTES:
            pending = submit(asked, immediate)
        else:
            pending = await self._service.in_thread(submit, asked, Durability.SYNCED)
        return (await self._service.outcome(pending))[0]


def transaction_id(text: str) -> int:
    """The id in a path. Raises `TransactionNotFound`."""
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise TransactionNotFound(f"There is no transaction {text[:40]!r}: an id is a number.")
    return int(text)
