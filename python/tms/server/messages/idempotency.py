"""The header Idempotency-Key of a JSON publish: the same request is stored once.

It needs no memory of its own for that: the key becomes a producer id under which each partition's
block is the first, so the log itself recognises a repetition, also after a restart, and answers
with the ids of the first one. What was sent with a key is remembered here only to refuse another
body that goes to other partitions, which no partition could notice.

Invariants

* The same key, topic and body make the same blocks for the same partitions.
* At most `KEYS_REMEMBERED` digests are kept, the newest.
"""

from collections import OrderedDict
from hashlib import blake2b

from tms.errors import IdempotencyKeyReused, Invalid
from tms.model.log import Buffer
from tms.model.topic import TopicName

KEY_CHARS_MAX = 255
KEYS_REMEMBERED = 10_000


def producer_id(key: str) -> int:
    """63 bits of the key's hash, not zero. Raises `Invalid` for a key that is none."""
    if not 0 < len(key) <= KEY_CHARS_MAX or not (key.isascii() and key.isprintable()):
        raise Invalid(
            f"An Idempotency-Key is 1 to {KEY_CHARS_MAX} printable ASCII characters, for example "
            "a UUID.",
            header="Idempotency-Key",
        )
    digest = blake2b(key.encode(), digest_size=8, person=b"tms-idempotency").digest()
    return int.from_bytes(digest, "big") >> 1 or 1


class RecentKeys:
    """Which body came with which key, lately. Used by the event loop's thread only."""

    def __init__(self) -> None:
        self._bodies: OrderedDict[tuple[TopicName, str], bytes] = OrderedDict()

    def remember(self, name: TopicName, key: str, body: Buffer) -> None:
        """Raises `IdempotencyKeyReused` when the key came with another body."""
        digest = blake2b(body, digest_size=16).digest()
        if self._bodies.setdefault((name, key), digest) != digest:
            raise reused(key)
        self._bodies.move_to_end((name, key))
        if len(self._bodies) > KEYS_REMEMBERED:
            self._bodies.popitem(last=False)

    def forget(self, name: TopicName, key: str) -> None:
        """The request was refused: nothing of it is stored, so it may come corrected."""
        self._bodies.pop((name, key), None)


def reused(key: str) -> IdempotencyKeyReused:
    """The error for a key that stands for another body."""
    return IdempotencyKeyReused(
        f"The Idempotency-Key {key[:64]!r} was used for a publish with another body. Take a new "
        "key for each publish, and repeat it only with the same bytes."
    )
