"""The header Idempotency-Key of a publish of JSON or CloudEvents: the same request is stored once.

It needs no memory of its own for that: the key becomes a producer id under which each partition's
block is the first, so the log itself recognises a repetition, also after a restart, and answers
with the ids of the first one. Such ids have `KEY_BIT`, and the log remembers them apart from those
of producers. This file remembers the body of a key for two reasons only: to refuse another body
that goes to other partitions, which no partition could notice, and to send a repetition to the
partitions of the first attempt if partitions are added meanwhile.

Invariants

* Equal key, topic and body make equal blocks for the same partitions, also once the topic has more
  of them: of its earlier numbers of partitions, the one with the most stored blocks counts.
* At most `KEYS_REMEMBERED` keys are kept, the newest.
* A key belongs to the principal that sent it: an equal key of another principal is another key.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import blake2b

from tms.api.messages import PackedRequest
from tms.api.parameters import KEY_CHARS_MAX
from tms.errors import IdempotencyKeyReused, Invalid, PartitionNotFound
from tms.model.message import KEY_BIT, Buffer, NewBlock
from tms.server.http.exchange import Exchange
from tms.server.http.request import header

Counts = tuple[int, ...]  # of partitions, newest first
KEYS_REMEMBERED = 10_000
_OF = "\n"  # between a key and its principal, in neither


def idempotency_key(exchange: Exchange) -> str:
    """The key of a request, which has one, with its principal if there is one. Raises
    `Invalid`."""
    key = header(exchange, b"idempotency-key")
    if not 0 < len(key) <= KEY_CHARS_MAX or not (key.isascii() and key.isprintable()):
        raise Invalid(
            f"An Idempotency-Key is 1 to {KEY_CHARS_MAX} printable ASCII characters, for example "
            "a UUID.",
            header="Idempotency-Key",
        )
    return f"{key}{_OF}{exchange.principal}" if exchange.principal else key


def producer_id(key: str) -> int:
    """63 bits of the key's hash, and the bit of ids that stand for keys."""
    digest = blake2b(key.encode(), digest_size=8, person=b"tms-idempotency").digest()
    return int.from_bytes(digest, "big") >> 1 | KEY_BIT


def turn_of(producer: int) -> int:
    """By which partition messages without a key of their own go under this producer id."""
    return producer & ~KEY_BIT


class RecentKeys:
    """The digests of bodies by key, newest last, with the number of partitions that each went to.
    Used by the event loop's thread only. Topics go by their uid: a topic that was created again has
    seen no key."""

    def __init__(self) -> None:
        self._sent: OrderedDict[tuple[int, str], tuple[bytes, Counts]] = OrderedDict()

    def remember(self, uid: int, key: str, sent: Sequence[Buffer], counts: Counts) -> Counts:
        """The numbers of partitions that the topic had when the key came first. Raises
        `IdempotencyKeyReused` when something else was sent with it."""
        hashed = blake2b(digest_size=16)
        for part in sent:
            hashed.update(part)
        digest = hashed.digest()
        known, counts = self._sent.setdefault((uid, key), (digest, counts))
        if known != digest:
            raise reused(key)
        self._sent.move_to_end((uid, key))
        if len(self._sent) > KEYS_REMEMBERED:
            self._sent.popitem(last=False)
        return counts

    def forget(self, uid: int, key: str) -> None:
        """Forget a refused request: nothing of it is stored, so the key may come with a corrected
        body."""
        self._sent.pop((uid, key), None)


def pack_like_before(
    pack: Callable[[int], PackedRequest],
    counts: Counts,
    count_stored: Callable[[Sequence[NewBlock]], int],
) -> PackedRequest:
    """The messages of a request under a key, as they are or would be stored: packed for as many
    partitions as the topic had when the key came first. `counts`: see `Engine.growth`."""
    newest, *older = counts
    best = pack(newest)
    if older:
        stored = count_stored(best.blocks)
        for count in older:
            with suppress(PartitionNotFound):  # it names one that was not there yet
                packed = pack(count)
                if (more := count_stored(packed.blocks)) > stored:
                    best, stored = packed, more
    return best


def reused(key: str) -> IdempotencyKeyReused:
    """The error for a key that stands for another body."""
    shown = key.partition(_OF)[0][:64]
    return IdempotencyKeyReused(
        f"The Idempotency-Key {shown!r} was used for a publish with another body. Take a new "
        "key for each publish, and repeat it only with the same bytes."
    )
