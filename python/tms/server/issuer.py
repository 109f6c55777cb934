"""The issuer whose tokens a service trusts: its keys, fetched again and again, and the tokens that
they have verified.

    refresh_s ──────────────▶ fetch ──▶ the keys from now on ──▶ tokens of keys that are gone: out
    a key that is not known ──┘  └─▶ not there: the keys stay, for stale_s

Invariants

* A request waits for the issuer only if its own token names a key that is not known, and then for
  one fetch at most. Unknown keys cause at most one fetch in `REFETCH_S`.
* Keys that could not be fetched again for `stale_s` verify nothing any more.
* A token is verified once; its SHA-256 is remembered until it expires, its key is gone, or too many
  are remembered.
"""

import asyncio
from collections.abc import Callable
from hashlib import sha256
from typing import NamedTuple

from tms.access.jwt import JwtRules, SigningKeys, VerifiedJwt, verify
from tms.errors import Malformed, Unavailable
from tms.runtime.clock import Clock
from tms.runtime.events import EventLog
from tms.runtime.extras import needed
from tms.runtime.tls import ClientTls
from tms.server.jwks import read_jwks

VERIFIED_MAX = 10_000  # tokens remembered; with one more all are forgotten
REFETCH_S = 10.0  # between fetches for keys that are not known
RETRY_S = 5.0  # after a fetch that failed
_log = EventLog("tms.server")


class IssuerOptions(NamedTuple):
    """The source of an issuer's keys (`jwks`: a URL or a path), the rules for its tokens, and the
    lifetime of keys that cannot be fetched again."""

    jwks: str
    rules: JwtRules
    tls: ClientTls
    refresh_s: float
    stale_s: float
    timeout_s: float


class TrustedIssuer:
    """Verifies tokens of an issuer. Used by the event loop's thread."""

    def __init__(self, options: IssuerOptions, clock: Clock) -> None:
        with needed("jwt.jwks", "server"):  # loads cryptography, which others need not
            from tms.access.jwks import keys_in
        self._options = options
        self._clock = clock
        self._keys_in = keys_in
        self._keys: SigningKeys | None = None
        self._thumbprints: frozenset[str] = frozenset()
        self._fetched_s = 0.0
        self._began_s: float | None = None  # the last fetch
        self._fetching: asyncio.Future[None] | None = None
        self._fault = "nobody has tried yet"  # why there are no newer keys; empty: there are
        self._verified: dict[bytes, VerifiedJwt] = {}
        self.when_changed: Callable[[], None] = lambda: None

    def verified(self, token: bytes) -> VerifiedJwt:
        """The claims of a token. Raises `UnknownKey`, `Unauthenticated`, and `Unavailable` while
        there are no keys."""
        now_ms, digest = self._clock.now_ms(), sha256(token).digest()
        found = self._verified.get(digest)
        if found is None or now_ms >= found.expires_ms:
            found = verify(token, self._usable, self._options.rules, now_ms)
            if len(self._verified) >= VERIFIED_MAX:
                self._verified.clear()
            self._verified[digest] = found
        else:
            self._usable()
        return found

    def warnings(self) -> list[str]:
        """Warnings for operators, without secrets: anybody may read them, and the log says more."""
        if not self._fault:
            return []
        head = "The keys of the issuer of JWTs (jwt.jwks) cannot be fetched or used; the log event"
        left_s = self._fetched_s + self._options.stale_s - self._clock.monotonic_s()
        known = self._keys is not None and left_s >= 0
        what = f"Known keys are used for {left_s:.0f} s more." if known else "No JWT is accepted."
        return [f"{head} jwks_not_fetched says why. {what}"]

    async def keep_fresh(self) -> None:
        """Fetch the keys again and again, until it is cancelled."""
        while True:
            await self._fetch()
            refresh_s = self._options.refresh_s
            await asyncio.sleep(min(RETRY_S, refresh_s) if self._fault else refresh_s)

    async def refetched(self) -> bool:
        """Fetch the keys because a token names an unknown one. False if they were fetched just
        now."""
        if self._fetching is None:
            now_s = self._clock.monotonic_s()
            if self._began_s is not None and now_s - self._began_s < REFETCH_S:
                return False
        await self._fetch()
        return True

    # -- parts -------------------------------------------------------------------------------------

    def _usable(self) -> SigningKeys:
        age_s = self._clock.monotonic_s() - self._fetched_s
        if self._keys is None or age_s > self._options.stale_s:
            raise Unavailable(
                "No JWT can be verified now: the keys of its issuer cannot be fetched (jwt.jwks). "
                "Try again, or use a token that `tms token create` made."
            )
        return self._keys

    async def _fetch(self) -> None:
        """Fetch the keys; calls meanwhile wait for the same fetch."""
        if self._fetching is None:
            self._began_s = self._clock.monotonic_s()
            self._fetching = asyncio.ensure_future(self._take_in())
        await asyncio.shield(self._fetching)

    async def _take_in(self) -> None:
        options = self._options
        try:
            document = await read_jwks(options.jwks, options.tls, options.timeout_s)
            keys = await asyncio.to_thread(self._keys_in, document)
        except (Unavailable, Malformed) as error:
            self._fail(error.message)
        else:
            self._fetched_s = self._clock.monotonic_s()
            self._replace(keys, keys.thumbprints)
        finally:
            self._fetching = None

    def _fail(self, why: str) -> None:
        if why != self._fault:
            _log.error("jwks_not_fetched", jwks=self._options.jwks, why=why)
        self._fault = why

    def _replace(self, keys: SigningKeys, thumbprints: frozenset[str]) -> None:
        gone = self._thumbprints - thumbprints
        if self._keys is None or thumbprints != self._thumbprints:
            _log.info("jwks_fetched", jwks=self._options.jwks, keys=len(thumbprints))
        self._keys, self._thumbprints, self._fault = keys, thumbprints, ""
        if not thumbprints:
            self._fail("it has no key that can be used")
        if gone:
            kept = {d: one for d, one in self._verified.items() if one.thumbprint in thumbprints}
            self._verified = kept
            self.when_changed()
