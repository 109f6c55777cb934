"""The authentication of a connection by SASL, and the requests of its principal.

    SaslHandshake ─▶ a mechanism ─▶ SaslAuthenticate, once (PLAIN) or twice (SCRAM) ─▶ a session
    a verified client certificate ─▶ a session

Invariants

* Without a session only `WITHOUT_SESSION` is answered; any other request ends the connection. So
  does one while an authentication is under way, or after the session's token was revoked or has
  expired.
* A failed authentication says the same for an unknown principal and for a wrong token, takes as
  long, and ends the connection. Of a client that guesses each answer waits.
* A session may be renewed on its connection while it has an expiry: by the same mechanism, and for
  the same principal.
* All that was exchanged is forgotten with the end of the authentication, however it ends.
"""

import asyncio
import secrets
from contextlib import suppress

from tms.access import scram
from tms.access.records import AccessRecords
from tms.compat.kafka.errors import ErrorCode
from tms.errors import Forbidden, Malformed, Unauthenticated
from tms.model.access import Access
from tms.runtime.clock import Clock
from tms.server.framed import SMALL_BYTES, FramedConnection
from tms.server.guard import Guard, PrincipalSession

PLAIN = "PLAIN"
MECHANISMS = (PLAIN, *scram.ALGORITHMS)
DENIALS_LOGGED = 5  # of one request; the others are answered only
WITHOUT_SESSION = ("ApiVersions", "SaslHandshake", "SaslAuthenticate")
_NONCE_BYTES = 24
_NOBODY = scram.ScramVerifier(secrets.token_bytes(64), secrets.token_bytes(64))
_NOT_VALID = (
    "The principal or its token is not valid here. The user name is the principal, the password "
    "its token. The token was mistyped, revoked, or has expired; or it cannot be used with SCRAM, "
    "which takes neither JWTs nor tokens that an earlier version of TMS made. An administrator "
    "makes a new one with `tms token create`."
)


class AuthenticationFailed(Exception):
    """A request of SASL is refused; with `ends` its connection ends after the answer."""

    def __init__(self, code: ErrorCode, message: str, ends: bool = True) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.ends = ends


class KafkaCaller:
    """A request of a connection, as decisions about access see it: an `AccessRequest`."""

    def __init__(self, guard: Guard, connection: FramedConnection, name: str, number: int) -> None:
        self.principal = ""
        self.instance = ""
        self.operation = f"kafka.{name}"
        self.via = ""
        self.request_id = str(number)
        self.received = 0
        self.sent = 0
        self.charged = 0
        self.decisions = guard.decisions
        self._guard = guard
        self._connection = connection
        self._allowed: set[tuple[Access, str]] = set()
        self._denials = 0

    @property
    def peer_address(self) -> str:
        """The address of the client."""
        return str(self._connection.peer[0])

    def abort(self) -> None:
        """End the connection: its client connects again, and learns the reason."""
        self._connection.abort()

    def begin(self, session: PrincipalSession, received: int) -> None:
        """Begin a request of a session, of so many bytes."""
        self.principal = session.principal
        self.received = received
        self._guard.begin(self, session)

    def leave(self, sent: int) -> float:
        """End a request that was answered by so many bytes. Returns the seconds that the next one
        of the principal has to wait for its quota."""
        self.sent = sent
        self._guard.leave(self)
        owed_s = self.owed_s()
        if owed_s > 0:
            self.decisions.note_refusal(self, "quota")
        return owed_s

    def owed_s(self) -> float:
        """Seconds that the principal has to wait for its quota."""
        return self.decisions.owed_s(self)

    def require(self, verb: Access, resource: str) -> None:
        """Raise `Forbidden` unless the principal may do this. From any thread."""
        asked = verb, resource
        if asked in self._allowed:
            return
        if self._denials >= DENIALS_LOGGED and not self.may(verb, resource):
            raise Forbidden(
                f"{self.principal} may not {verb} {resource}, nor other things that the request "
                "asks for; the log of the service has the first of them.",
                resource=resource,
            )
        try:
            self.decisions.require(self, verb, resource)
        except Forbidden:
            self._denials += 1
            raise
        self._allowed.add(asked)

    def may(self, verb: Access, resource: str) -> bool:
        """True if the principal may do this. From any thread."""
        return self.decisions.may(self.principal, verb, resource)


class Authentication:
    """The state of a connection. Used by the event loop's thread."""

    def __init__(
        self, guard: Guard, records: AccessRecords, clock: Clock, connection: FramedConnection
    ) -> None:
        self._guard = guard
        self._records = records
        self._clock = clock
        self._connection = connection
        self._session: PrincipalSession | None = None
        self._mechanism = ""  # of the authentication under way
        self._last_mechanism = ""  # of the session
        self._is_raw = False  # its messages come without a header: version 0 of SaslHandshake
        self._scram: tuple[scram.ScramExchange, str] | None = None  # with the user's name
        self._failed = False
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, timeout_s: float) -> None:
        """Give a new connection so long to authenticate, by small frames."""
        self._connection.limit_frames(SMALL_BYTES)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(timeout_s, self._connection.abort)

    def end(self) -> None:
        """Forget the connection."""
        if self._timer is not None:
            self._timer.cancel()

    @property
    def takes_raw(self) -> bool:
        """True if the next frame is a message of the mechanism, without a header."""
        return self._is_raw and bool(self._mechanism)

    @property
    def session(self) -> PrincipalSession | None:
        """The session of the connection while its token is valid."""
        session = self._session
        return session if session is not None and session.is_known() else None

    @property
    def lifetime_ms(self) -> int:
        """Milliseconds until the client has to renew its session; 0: it need not."""
        if self._session is None or not self._session.expires_ms:
            return 0
        return max(1, self._session.expires_ms - self._clock.now_ms())

    async def admit(self, name: str) -> PrincipalSession | None:
        """The session of a request; None if there is none, and it may come before. Raises
        `Malformed` for a request that is not answered now, which ends the connection."""
        if self._session is None and not self._mechanism and not self._failed:
            certificate = self._connection.peer_certificate_name
            if certificate is not None:
                self._open(self._guard.session_by_certificate(certificate))
                await self._rest(name)
        if name in WITHOUT_SESSION and not self._failed:
            return self.session
        if self._failed or self._mechanism or self._session is None:
            raise Malformed(
                f"The client asks for {name} before it has authenticated: this service controls "
                "access. Set the client's security.protocol to SASL_SSL or SASL_PLAINTEXT, and "
                f"its sasl.mechanism to one of {', '.join(MECHANISMS)}."
            )
        if not self._session.is_known():
            raise Malformed(f"The token of {self._session.principal} was revoked, or has expired.")
        return self._session

    def choose(self, mechanism: str, version: int) -> None:
        """Begin an authentication. Raises `AuthenticationFailed`."""
        renews = bool(self._last_mechanism)
        if renews and not self._mechanism and not self.lifetime_ms:
            why = "The connection is authenticated, and its session does not expire."
            raise AuthenticationFailed(ErrorCode.ILLEGAL_SASL_STATE, why, ends=False)
        if self._mechanism or (renews and mechanism != self._last_mechanism):
            why = "Another authentication is under way, or the session has another mechanism."
            raise self._failure(ErrorCode.ILLEGAL_SASL_STATE, why)
        if mechanism not in MECHANISMS:
            why = f"The mechanisms are {', '.join(MECHANISMS)}, got {mechanism!r:.40}."
            raise self._failure(ErrorCode.UNSUPPORTED_SASL_MECHANISM, why)
        self._mechanism = mechanism
        self._is_raw = version == 0

    async def step(self, caller: KafkaCaller, message: bytes) -> bytes:
        """The answer to a message of the mechanism. Raises `AuthenticationFailed`, and
        `Unavailable` while the keys of an issuer are."""
        if not self._mechanism:
            why = "SaslHandshake comes before SaslAuthenticate."
            if self._session is not None:
                raise AuthenticationFailed(ErrorCode.ILLEGAL_SASL_STATE, why, ends=False)
            raise self._failure(ErrorCode.ILLEGAL_SASL_STATE, why)
        self._failed = True  # unless it goes on
        try:
            if self._mechanism == PLAIN:
                session = await self._plain(caller, message)
                answer = b""
            elif self._scram is None:
                answer = self._begin_scram(message)
                self._failed = False
                return answer
            else:
                session, answer = await self._finish_scram(caller, message)
        except Malformed as error:
            await self._guard.refuse(caller, "wrong token")
            raise self._failure(ErrorCode.SASL_AUTHENTICATION_FAILED, error.message) from None
        except Unauthenticated:
            raise self._failure(ErrorCode.SASL_AUTHENTICATION_FAILED, _NOT_VALID) from None
        renewed = self._session if self._last_mechanism else None
        if renewed is not None and renewed.principal != session.principal:
            why = f"The session belongs to {renewed.principal}, and to no other principal."
            raise self._failure(ErrorCode.SASL_AUTHENTICATION_FAILED, why)
        self._last_mechanism = self._mechanism
        self._failed = False
        self._forget()
        self._open(session)
        caller.principal = session.principal
        self._connection.rest(caller.owed_s)  # a new connection brings no new quota
        return answer

    # -- mechanisms --------------------------------------------------------------------------------

    async def _plain(self, caller: KafkaCaller, message: bytes) -> PrincipalSession:
        parts = message.split(b"\0")
        try:
            authorized, user, token = parts
            principal = user.decode()
        except ValueError:
            raise Malformed("A message of PLAIN is a user name and a password.") from None
        if authorized not in (b"", user):
            raise Malformed("A client of PLAIN authenticates for itself, not for another user.")
        return await self._guard.session(caller, principal, token)

    def _begin_scram(self, message: bytes) -> bytes:
        nonce = secrets.token_urlsafe(_NONCE_BYTES)
        exchange = scram.ScramExchange(scram.ALGORITHMS[self._mechanism], nonce)
        principal = exchange.begin(message)
        self._scram = exchange, principal
        return exchange.challenge(scram.salt_of(principal))

    async def _finish_scram(
        self, caller: KafkaCaller, message: bytes
    ) -> tuple[PrincipalSession, bytes]:
        assert self._scram is not None
        exchange, principal = self._scram
        algorithm = scram.ALGORITHMS[self._mechanism]
        tokens = [one for one in self._records.tokens_of(principal) if algorithm in one.scram]
        verifiers = [scram.unpacked(one.scram[algorithm]) for one in tokens]
        found = exchange.finish(message, verifiers or [_NOBODY])
        if found is None or not tokens:
            await self._guard.refuse(caller, "wrong token")
            raise Unauthenticated(_NOT_VALID)
        index, answer = found
        return self._guard.session_of(tokens[index]), answer

    # -- parts -------------------------------------------------------------------------------------

    def _open(self, session: PrincipalSession | None) -> None:
        self._session = session
        if session is not None:
            self.end()
            self._connection.allow_frames()

    async def _rest(self, name: str) -> None:
        """Wait with the first request of a session until its principal's quota allows. Raises
        `Malformed` if the client does not wait."""
        if self._session is None:
            return
        caller = KafkaCaller(self._guard, self._connection, name, 0)
        caller.principal = self._session.principal
        left = asyncio.Event()
        self._connection.when_left(left.set)
        while (owed_s := caller.owed_s()) > 0:
            if left.is_set():
                raise Malformed(f"The quota of {caller.principal} is used up, and it did not wait.")
            with suppress(TimeoutError):
                await asyncio.wait_for(left.wait(), owed_s)

    def _forget(self) -> None:
        self._mechanism = ""
        self._scram = None

    def _failure(self, code: ErrorCode, why: str) -> AuthenticationFailed:
        """The connection gets this error, and nothing more."""
        self._failed = True
        self._session = None
        self._forget()
        return AuthenticationFailed(code, why)
