"""The header Idempotency-Key of requests with tokens: a repetition is told what the first one was.

Invariants

* A request that is repeated while the first is under way waits for it.
* Only successes are remembered, the newest `ANSWERS_REMEMBERED`, and only small ones; what failed
  may be tried again.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from hashlib import blake2b
from typing import NamedTuple

from tms.errors import IdempotencyKeyReused
from tms.model.log import Buffer

ANSWERS_REMEMBERED = 10_000
ANSWER_BYTES_MAX = 1 << 10


class _Known(NamedTuple):
    digest: bytes
    answer: "asyncio.Future[bytes]"


class RecentAnswers:
    """Which answer a key had, lately. Used by the event loop's thread only."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, _Known] = OrderedDict()

    async def once(self, key: str, body: Buffer, work: Callable[[], Awaitable[bytes]]) -> bytes:
        """The answer that `work` makes, or made for this key. Raises what `work` raises, and
        `IdempotencyKeyReused` when the key came with another body."""
        digest = blake2b(body, digest_size=16).digest()
        known = self._known.get(key)
        if known is not None:
            if known.digest != digest:
                raise IdempotencyKeyReused(
                    "The Idempotency-Key was used for a request with another body. Take a new key "
                    "for each request, and repeat it only with the same bytes."
                )
            return await asyncio.shield(known.answer)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._known[key] = _Known(digest, answer)
        if len(self._known) > ANSWERS_REMEMBERED:
            self._known.popitem(last=False)
        try:
            made = await work()
        except BaseException as error:
            self._known.pop(key, None)
            answer.set_exception(error)
            answer.exception()  # it is raised here; nobody else may be waiting for it
            raise
        answer.set_result(made)
        if len(made) > ANSWER_BYTES_MAX:
            self._known.pop(key, None)
        return made
