"""Proofs between instances: a MAC over each request, by a key that only the two processes know.

    own private key, public key of the other ─▶ Diffie-Hellman ─▶ key ─▶ HMAC-SHA256 of a request

    TMS-Peer: SENDER RECEIVER TIME NUMBER BODY MAC

    SENDER, RECEIVER   ids of the two public keys: 16 hexadecimal digits of their SHA-256
    TIME               by the sender's clock, ms since 1970
    NUMBER             counts the proofs of the sender's process
    BODY               the SHA-256 of a body of 1 to 65,536 bytes; else `-` and its length, or `-`
                       alone if it comes in chunks
    MAC                of four lines: method, path with query, principal, and the words before

Invariants

* A private key never leaves the memory of its process, and is made when the process starts. Public
  keys stand in the record by which the others see an instance.
* An instance that is in no view is believed nothing.
* A proof is good for one process and once: another process has another key, and of each sender the
  numbers are remembered. One that is `NUMBERS` older than the newest is not believed any more.
* An instance of an earlier version shows no keys and gets no proofs. It is believed nothing.
* A key is replaced after `KEY_S`. The new one is shown `SPREAD_S` before it is used, and the old
  one is believed as long again.
"""

import hmac
import secrets
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from itertools import count
from typing import NamedTuple

from tms.errors import Forbidden, Unavailable
from tms.model.message import Buffer
from tms.runtime.clock import Clock

KEY_S = 86_400.0
SPREAD_S = 60.0
SKEW_MS_MAX = 300_000  # between the clocks of two instances
NUMBERS = 16_384  # of a sender that are remembered, 8 bytes each
COVERED_BYTES_MAX = 64 << 10  # of a body whose content is proven
PRIVATE_BITS = 256
_WORDS = 6
_MAC_BYTES = 65  # in hexadecimal digits, and a blank
# The group ffdhe2048 of RFC 7919, with the generator 2.
_PRIME = int(
    "FFFFFFFFFFFFFFFFADF85458A2BB4A9AAFDC5620273D3CF1D8B9C583CE2D3695"
    "A9E13641146433FBCC939DCE249B3EF97D2FE363630C75D8F681B202AEC4617A"
    "D3DF1ED5D5FD65612433F51F5F066ED0856365553DED1AF3B557135E7F57C935"
    "984F0C70E0E68B77E2A689DAF3EFE8721DF158A136ADE73530ACCA4F483A797A"
    "BC0AB182B324FB61D108A94BB2C8E3FBB96ADAB760D7F4681D4F42A3DE394DF4"
    "AE56EDE76372BB190B07A7C8EE0A6D709E02FCE1CDF7E2ECC03404CD28342F61"
    "9172FE9CE98583FF8E4F1232EEF28183C3FE3B1B4C6FAD733BB5FCBC2EC22005"
    "C58EF1837D1683B2C6F34A26C1B2EFFA886B423861285C97FFFFFFFFFFFFFFFF",
    16,
)
_PUBLIC_BYTES = 256


class UnknownInstance(Unavailable):
    """A proof names a key that this instance has not seen yet, or has no more."""


class _OwnKey(NamedTuple):
    id: bytes
    private: int
    public: str
    since_s: float


class _OtherKey(NamedTuple):
    id: bytes
    public: int
    instance: str


class Proven(NamedTuple):
    """A proof that holds for all but the body: that has to be `body`; see `covered`."""

    instance: str
    body: bytes
    first: bool  # of this sender's key


class ProvenRequest(NamedTuple):
    """The part of a request that a proof covers besides its body."""

    method: bytes
    target: bytes
    principal: bytes


class InstanceIdentity:
    """The keys of the instance `id`, and those of the others that it sees. `check` is for one
    thread at a time, the rest thread-safe. `random` gives a number of so many bits."""

    def __init__(
        self, id: str, clock: Clock, random: Callable[[int], int] = secrets.randbits
    ) -> None:
        self.id = id
        self._clock = clock
        self._random = random
        self._own: tuple[_OwnKey, ...] = ()  # newest first
        self._by_instance: dict[str, _OtherKey] = {}  # the newest key of each
        self._by_key: dict[bytes, _OtherKey] = {}
        self._keyless: frozenset[str] = frozenset()
        self._agreed: dict[tuple[bytes, bytes], hmac.HMAC] = {}  # by sender and receiver
        self._count = count(1)
        self._numbers: dict[tuple[bytes, bytes], TakenNumbers] = {}  # by sender and receiver

    @property
    def keys(self) -> tuple[str, ...]:
        """The public keys that the others need, newest first."""
        if not self._own:
            self._own = (self._new_key(),)
        return tuple(one.public for one in self._own)

    def turn(self) -> bool:
        """Replace a key that is too old, and drop one that was replaced; True if the others need to
        see other keys now."""
        if not self._own:
            return False
        age_s = self._clock.monotonic_s() - self._own[0].since_s
        if age_s >= KEY_S:
            self._own = (self._new_key(), self._own[0])
        elif len(self._own) > 1 and age_s >= 2 * SPREAD_S:
            self._own = self._own[:1]
        else:
            return False
        return True

    def see(self, others: Mapping[str, Sequence[str]]) -> None:
        """Take the instances of the newest view, and the public keys of each, newest first."""
        by_instance: dict[str, _OtherKey] = {}
        by_key: dict[bytes, _OtherKey] = {}
        for instance, keys in others.items():
            for public in keys:
                key = _other_key(public, instance)
                if key is not None and instance != self.id:
                    by_instance.setdefault(instance, key)
                    by_key[key.id] = key
        self._by_instance = by_instance
        self._keyless = frozenset(others) - by_instance.keys()
        self._by_key = by_key
        for pair in [*self._agreed]:
            if by_key.keys().isdisjoint(pair):
                self._agreed.pop(pair, None)

    def prove(
        self, to: str, request: ProvenRequest, length: int | None, body: Iterable[Buffer] = ()
    ) -> bytes:
        """A proof for the instance `to`, empty for one without keys; `length` and `body` as
        `covered` takes them. Raises `Unavailable`."""
        theirs = self._by_instance.get(to)
        if theirs is None and to in self._keyless:
            return b""
        if theirs is None:
            raise Unavailable(f"The instance {to} is not among the others now. Try again.")
        mine = self._signing()
        words = b"%b %b %d %d %b" % (
            mine.id,
            theirs.id,
            self._clock.now_ms(),
            next(self._count),
            covered(length, body),
        )
        key = self._key(mine, theirs, (mine.id, theirs.id))
        return words + b" " + _mac(key, request, words)

    def check(self, proof: bytes, request: ProvenRequest) -> Proven:
        """The instance that has made a proof. Raises `UnknownInstance`, `Unavailable` for a proof
        that came too late, and `Forbidden` for one that is wrong, repeated, or of another time."""
        words = proof.split(b" ")
        if len(words) != _WORDS:
            raise Forbidden(
                "The header TMS-Peer is no proof of an instance. An instance of an earlier version "
                "has none: stop all of these, then start the new ones."
            )
        theirs = self._by_key.get(words[0])
        mine = next((one for one in self._own if one.id == words[1]), None)
        if theirs is None or mine is None:
            raise UnknownInstance(
                f"The instance {self.id} does not see the instance that asks, or has another key "
                "by now. Try again."
            )
        pair = theirs.id, mine.id
        mac = _mac(self._key(mine, theirs, pair), request, proof[:-_MAC_BYTES])
        if not hmac.compare_digest(mac, words[-1]):
            raise Forbidden("The header TMS-Peer proves another request than this one.")
        now_ms = self._clock.now_ms()
        skew_ms = now_ms - int(words[2])
        if not -SKEW_MS_MAX <= skew_ms <= SKEW_MS_MAX:
            raise Forbidden(
                f"The clocks of the instances {theirs.instance} and {self.id} differ by "
                f"{abs(skew_ms) / 1_000:,.0f} s, at most {SKEW_MS_MAX // 1_000} are allowed. Let "
                "chrony or systemd-timesyncd keep both."
            )
        numbers = self._numbers.get(pair)
        if first := numbers is None:
            numbers = self._numbers_of(pair, now_ms)
        if not numbers.take(int(words[3]), now_ms):
            raise Forbidden("The header TMS-Peer was used before.")
        return Proven(theirs.instance, words[4], first)

    # -- parts -------------------------------------------------------------------------------------

    def _new_key(self) -> _OwnKey:
        private = self._random(PRIVATE_BITS) | 1 << PRIVATE_BITS
        public = pow(2, private, _PRIME).to_bytes(_PUBLIC_BYTES).hex()
        return _OwnKey(_id(public), private, public, self._clock.monotonic_s())

    def _signing(self) -> _OwnKey:
        """The newest key that the others have surely seen."""
        own = self._own
        if len(own) > 1 and self._clock.monotonic_s() - own[0].since_s < SPREAD_S:
            return own[1]
        return own[0]

    def _key(self, mine: _OwnKey, theirs: _OtherKey, pair: tuple[bytes, bytes]) -> hmac.HMAC:
        key = self._agreed.get(pair)
        if key is None:
            secret = pow(theirs.public, mine.private, _PRIME).to_bytes(_PUBLIC_BYTES)
            derived = hmac.digest(secret, b"tms instance %b %b" % pair, "sha256")
            key = self._agreed[pair] = hmac.new(derived, digestmod="sha256")
        return key

    def _numbers_of(self, pair: tuple[bytes, bytes], now_ms: int) -> "TakenNumbers":
        """The numbers of a new sender; forgets senders whose proofs have expired."""
        for old, numbers in [*self._numbers.items()]:
            if old[0] not in self._by_key and now_ms - numbers.used_ms > 2 * SKEW_MS_MAX:
                del self._numbers[old]
        return self._numbers.setdefault(pair, TakenNumbers())


class TakenNumbers:
    """The newest numbers of a sender that were taken."""

    def __init__(self) -> None:
        self._taken = array("Q", bytes(8 * NUMBERS))
        self.used_ms = 0

    def take(self, number: int, now_ms: int) -> bool:
        """True if a number was not taken before. Raises `Unavailable` for one that is too old to
        know."""
        place = number % NUMBERS
        if self._taken[place] > number:
            raise Unavailable(f"{NUMBERS} other requests have overtaken this one. Try again.")
        if self._taken[place] == number:
            return False
        self._taken[place] = number
        self.used_ms = now_ms
        return True


def covered(length: int | None, body: Iterable[Buffer]) -> bytes:
    """The word BODY of a proof for a body of this length, None if it comes in chunks; `body` has to
    be there if `is_covered`."""
    if length is None:
        return b"-"
    if not is_covered(length):
        return b"-%d" % length
    digest = sha256()
    for piece in body:
        digest.update(piece)
    return digest.hexdigest().encode()


def is_covered(length: int | None) -> bool:
    """True if a proof covers the content of a body of this length."""
    return length is not None and 0 < length <= COVERED_BYTES_MAX


def _id(public: str) -> bytes:
    return sha256(public.encode()).hexdigest()[:16].encode()


def _other_key(public: str, instance: str) -> _OtherKey | None:
    """The public key of another instance; None if it is none."""
    if len(public) != 2 * _PUBLIC_BYTES:
        return None
    with suppress(ValueError):
        number = int.from_bytes(bytes.fromhex(public))
        if 1 < number < _PRIME - 1:
            return _OtherKey(_id(public), number, instance)
    return None


def _mac(key: hmac.HMAC, request: ProvenRequest, words: bytes) -> bytes:
    mac = key.copy()  # costs less than a digest that begins with the key
    mac.update(b"%b\n%b\n%b\n%b" % (*request, words))
    return mac.hexdigest().encode()
