"""Identifies the principal of an HTTP request, or of a connection of another protocol, and lets
`access.decisions` decide.

    token, JWT of a trusted issuer, or client certificate ─▶ principal ─▶ decisions
    session of the console, by its pages; one-time link, where it is redeemed ─▶ principal
    token, JWT or proof of SCRAM, by a connection ─▶ session ─▶ principal of its requests
    instance of the cluster, by its proof (`cluster/identity`) ─▶ the principal that it names

Invariants

* The verb and the resource are those that the operation declares. Unless declared open, every
  operation needs a principal.
* A principal whose token was revoked or has expired, or whose grant was taken away, gets nothing
  from then on: its waiting requests are aborted, too.
* A token is looked up before the body of its request is read. A wrong token delays only the
  requests of its own sender.
* A principal named by an issuer or a CA is a principal like others, and never one that TMS makes
  itself.
* No token is logged, neither a valid one nor a wrong one.
* A session of the console is no token of any other request, and a link is none but of the operation
  that redeems it.
* A request with an invalid proof is refused, whatever else it shows.
"""

import asyncio
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from tms.access.decisions import GUESSES_FREE, AccessDecisions, AccessRequest
from tms.access.decisions import INSTANCE as INSTANCE_NAME
from tms.access.jwt import UnknownKey, is_jwt
from tms.access.records import FIRST, AccessRecords, TokenRecord
from tms.access.sessions import LINK_IS_OVER
from tms.access.tokens import TOKEN, digest
from tms.api.operation import Operation, Resource
from tms.api.operations import OPERATIONS
from tms.cluster.identity import (
    InstanceIdentity,
    Proven,
    ProvenRequest,
    UnknownInstance,
    covered,
    is_covered,
)
from tms.errors import (
    Forbidden,
    Malformed,
    TMSError,
    Unauthenticated,
    Unavailable,
)
from tms.model.access import Access, Credential, is_principal
from tms.runtime.clock import Clock
from tms.server.forwarding import HOP, PEER, PRINCIPAL
from tms.server.http.exchange import Exchange
from tms.server.http.request import path_text
from tms.server.issuer import TrustedIssuer

AUTHORIZATION = b"authorization"
TOKEN_BYTES_MAX = 8 << 10
GUESS_S = 1.0  # that an answer to a wrong token waits then
KEY_WAIT_S = 2.0  # for the view that has the key of an instance that asks
KEY_LOOK_S = 0.02  # until the first look; twice as long until each next one
EXPIRY_S = 1.0  # after its token has expired, at the latest, a request that waits is ended
INSTANCE = INSTANCE_NAME.encode()  # in the header that names the principal
_BEARER = b"bearer "
_VALUES = re.compile(rb"[&=]")
_WAITING = ("fetch", "receive")  # operations that may wait for long
_REDEEMS = OPERATIONS["access.redeem_link"].name
_NOT_VALID = (
    "The token is not valid here: it was mistyped, revoked, or has expired. Ask an administrator "
    "for another one."
)
_T = TypeVar("_T")


class PrincipalSession(NamedTuple):
    """The principal of a connection, the expiry of its token in ms since 1970 (0: never), and a
    function that says if the token is still valid."""

    principal: str
    expires_ms: int
    is_known: Callable[[], bool]


class Guard:
    """Admits requests. Used by the event loop's thread, but for `changed`. `issuer`: of tokens that
    are trusted besides those of the records; `identity`: of this instance, None where there can be
    no others, so that no proof is accepted."""

    def __init__(
        self,
        records: AccessRecords,
        clock: Clock,
        identity: InstanceIdentity | None,
        audits_all: bool = False,
        issuer: TrustedIssuer | None = None,
    ) -> None:
        self.decisions = AccessDecisions(records, clock, audits_all)
        self._records = records
        self._issuer = issuer
        self._clock = clock
        self._identity = identity
        self._expiring: dict[AccessRequest, int] = {}  # that wait, and when their tokens expire
        self._ending: asyncio.TimerHandle | None = None  # looks at them
        self._loop: asyncio.AbstractEventLoop | None = None
        records.when_changed = self.changed
        if issuer is not None:
            issuer.when_changed = self.changed

    async def admit(
        self, exchange: Exchange, operation: Operation, varying: Sequence[bytes]
    ) -> None:
        """Let a request pass that may be answered, and set `exchange.principal`. Raises
        `Unauthenticated`, `Forbidden`, `Overloaded`, `Malformed`."""
        if operation.access is Access.OPEN:
            return
        resource = resource_of(operation, varying)
        exchange.operation = operation.name
        if operation.on is Resource.INSTANCE:
            await self._believe(exchange)
            if self.decisions.audits_all:
                self.decisions.write_instance("instance_asked", exchange)
            return
        await self._identify(exchange)
        self.decisions.measure(exchange)
        if operation.api != "access":  # whose answer may be about the change that ends others
            self.decisions.begin(exchange, partial(self._is_still_known, exchange))
        if operation.lists is not None:
            exchange.sees = self.decisions.require_list(exchange, resource, operation.lists.value)
        elif operation.access is not Access.KNOWN:
            self.decisions.require(exchange, operation.access, resource)

    async def admit_foreign(
        self, exchange: Exchange, verb: Access, resource: str, lists: Resource | None = None
    ) -> None:
        """Let a request of another protocol pass, as `admit`; `lists` is what an operation
        declares."""
        await self._identify(exchange)
        self.decisions.measure(exchange)
        self.decisions.begin(exchange, partial(self._is_still_known, exchange))
        if lists is not None:
            exchange.sees = self.decisions.require_list(exchange, resource, lists.value)
        else:
            self.decisions.require(exchange, verb, resource)

    def leave(self, request: AccessRequest) -> None:
        """Forget a request that was answered, and count it for its principal's quota."""
        self._expiring.pop(request, None)
        self.decisions.leave(request)

    # -- connections with sessions -----------------------------------------------------------------

    async def session(
        self, request: AccessRequest, principal: str, token: bytes
    ) -> PrincipalSession:
        """A session of a principal that shows its token. Raises `Unauthenticated`, `Unavailable`,
        after a pause if the client guesses."""
        try:
            shown = await self._with_keys(partial(self._named_by, token))
            if shown.principal != principal:
                raise Unauthenticated(_NOT_VALID)
        except (Unauthenticated, Unavailable):
            await self.refuse(request, "wrong token")
            raise
        if self._issuer is not None and b"." in token:
            # Not a `partial`: its repr would show the token.
            expires_ms = shown.expires_ms
            return PrincipalSession(
                principal, expires_ms, lambda: self._is_named_by(token, principal)
            )
        return self._session_of(principal, digest(token), shown.expires_ms)

    def session_of(self, token: TokenRecord) -> PrincipalSession:
        """A session of a principal that has proved to know this token."""
        return self._session_of(token.principal, token.digest, token.expires_ms)

    def session_by_certificate(self, name: str) -> PrincipalSession | None:
        """A session of the principal that a verified certificate names."""
        return PrincipalSession(name, 0, lambda: True) if _may_be_named(name) else None

    def begin(self, request: AccessRequest, session: PrincipalSession) -> None:
        """Begin a request of a session: it is aborted once its principal may not do what it
        requires, and soon after its token has expired."""
        self._loop = self._loop or asyncio.get_running_loop()
        self.decisions.count(request)
        self.decisions.begin(request, session.is_known)
        if session.expires_ms:
            self._expire(request, session.expires_ms)

    async def refuse(self, request: AccessRequest, why: str) -> None:
        """Note a refusal of a credential; a client that guesses waits, and no other."""
        if self.decisions.note_refusal(request, why) > GUESSES_FREE:
            await asyncio.sleep(GUESS_S)

    def _session_of(self, principal: str, digest: str, expires_ms: int) -> PrincipalSession:
        valid = self._records.valid
        return PrincipalSession(principal, expires_ms, lambda: valid(digest) is not None)

    def _is_named_by(self, token: bytes, principal: str) -> bool:
        try:
            return self._named_by(token).principal == principal
        except TMSError:
            return False

    # -- who ---------------------------------------------------------------------------------------

    async def _identify(self, exchange: Exchange) -> None:
        self._loop = self._loop or asyncio.get_running_loop()
        if exchange.query and has_token(exchange.query):
            self.decisions.note_refusal(exchange, "token in a URL")
            raise Malformed(
                "A token does not belong into a URL, where logs keep it: send it as `Authorization:"
                " Bearer TOKEN`, and revoke this one."
            )
        if PEER in exchange.headers:
            await self._believe(exchange)
            exchange.principal = exchange.headers.get(PRINCIPAL, INSTANCE).decode("latin-1")
            return
        try:
            shown = await self._credential(exchange)
        except (Unauthenticated, Unavailable):
            if AUTHORIZATION not in exchange.headers:
                self.decisions.note_refusal(exchange, "no token")
            else:
                await self.refuse(exchange, "wrong token")
            raise
        exchange.credential = shown
        exchange.principal = shown.principal
        if shown.expires_ms and exchange.operation in _WAITING:
            self._expire(exchange, shown.expires_ms)

    async def _credential(self, exchange: Exchange) -> Credential:
        """The credential that a request shows. Raises `Unauthenticated`, `Unavailable`."""
        if (exchange.via or exchange.operation == _REDEEMS) and AUTHORIZATION in exchange.headers:
            find = self._records.sessions.find
            shown = await asyncio.to_thread(find, _bearer(exchange.headers[AUTHORIZATION]))
            if shown is not None and shown.is_link == (exchange.operation == _REDEEMS):
                return shown
        try:
            return await self._with_keys(partial(self._shown, exchange))
        except Unauthenticated:
            if exchange.operation == _REDEEMS:
                raise Unauthenticated(LINK_IS_OVER) from None
            raise

    def _expire(self, request: AccessRequest, expires_ms: int) -> None:
        self._expiring[request] = expires_ms
        if self._ending is None and self._loop is not None:
            self._ending = self._loop.call_later(EXPIRY_S, self._end_expired)

    async def _with_keys(self, look: Callable[[], _T]) -> _T:
        """The result of a look at a token, after fetching the issuer's keys if one is unknown."""
        try:
            return look()
        except UnknownKey:
            if self._issuer is None or not await self._issuer.refetched():
                raise
            return look()

    def _shown(self, exchange: Exchange) -> Credential:
        """The credential of a request's token or certificate."""
        authorization = exchange.headers.get(AUTHORIZATION)
        if authorization is None:
            name = exchange.peer_certificate_name
            if HOP in exchange.headers:
                name = None  # it is the one of the instance that forwards
            if name is not None and _may_be_named(name):
                return Credential(name)
            raise Unauthenticated(
                "This service wants to know who asks: send `Authorization: Bearer TOKEN`, "
                "tms.connect(url, token=…), or TMS_TOKEN. An administrator makes one with `tms "
                "token create`."
            )
        return self._named_by(_bearer(authorization))

    def _named_by(self, token: bytes) -> Credential:
        """The credential of a token or JWT."""
        if len(token) <= TOKEN_BYTES_MAX:
            if self._issuer is not None and b"." in token:  # which those of the records have not
                return self._named_by_issuer(self._issuer, token)
            record = self._records.token(token)
            spelled = TOKEN.fullmatch(token)
            if record is not None and spelled is not None:
                return Credential(record.principal, record.expires_ms, spelled[1].decode())
        raise Unauthenticated(_NOT_VALID)

    def _named_by_issuer(self, issuer: TrustedIssuer, token: bytes) -> Credential:
        verified = issuer.verified(token)
        if not _may_be_named(verified.principal):
            raise Unauthenticated(
                f"The token names {verified.principal!r:.80}, which no principal can be called: 1 "
                "to 128 of A-Z a-z 0-9 _ . @ -, beginning with a letter, a digit or _. Let the "
                "service take another claim (jwt.principal)."
            )
        return Credential(verified.principal, verified.expires_ms)

    async def _believe(self, exchange: Exchange) -> None:
        """Admit a request of an instance, and set `exchange.instance`. Raises `Forbidden`,
        `Unavailable`, `SlowRequest`, `Disconnected`."""
        try:
            if self._identity is None or PEER not in exchange.headers:
                raise Forbidden("This is for instances of the cluster only.")
            proven = await self._proven(self._identity, exchange)
            length = exchange.content_length
            body = covered(length, (await exchange.whole(),) if is_covered(length) else ())
            if body != proven.body:
                raise Forbidden("The header TMS-Peer proves another body than this one.")
        except (Forbidden, Unavailable) as error:
            self.decisions.note_refusal(exchange, "no proof of an instance", error=error.message)
            raise
        exchange.instance = proven.instance
        if proven.first:
            self.decisions.write_instance("instance_believed", exchange)

    async def _proven(self, identity: InstanceIdentity, exchange: Exchange) -> Proven:
        """The checked proof; waits until this instance sees the instance that made it."""
        principal = exchange.headers.get(PRINCIPAL, INSTANCE)
        request = ProvenRequest(exchange.method.encode(), exchange.target, principal)
        proof = exchange.headers[PEER]
        waited_s = 0.0
        look_s = KEY_LOOK_S
        while True:
            try:
                return identity.check(proof, request)
            except UnknownInstance:
                if waited_s >= KEY_WAIT_S:
                    raise
            await asyncio.sleep(look_s)
            waited_s += look_s
            look_s *= 2  # a stranger with a wrong key costs a few looks

    # -- changes -----------------------------------------------------------------------------------

    def changed(self) -> None:
        """Tokens or grants have changed. From any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.decisions.changed)

    def _end_expired(self) -> None:
        """Abort waiting requests whose tokens have expired, and do so again later."""
        now_ms = self._clock.now_ms()
        for request in [one for one, at_ms in self._expiring.items() if at_ms <= now_ms]:
            del self._expiring[request]
            request.abort()
        self._ending = None
        if self._expiring and self._loop is not None:
            self._ending = self._loop.call_later(EXPIRY_S, self._end_expired)

    def _is_still_known(self, exchange: Exchange) -> bool:
        if exchange.instance:
            return True  # the instance that asks looks after it
        if exchange.credential is not None and exchange.credential.session:
            return self._records.sessions.is_lasting(exchange.credential)
        try:
            return self._shown(exchange).principal == exchange.principal
        except TMSError:
            return False


def _bearer(authorization: bytes) -> bytes:
    """The token in the header of a request. Raises `Unauthenticated`."""
    token = authorization[len(_BEARER) :].strip()
    if authorization[: len(_BEARER)].lower() != _BEARER or not token:
        raise Unauthenticated("Only `Authorization: Bearer TOKEN` is understood.")
    return token


def has_token(query: bytes) -> bool:
    """True if a query, or a part of a path, contains a token."""
    if b"tms_" in query and TOKEN.search(query):
        return True
    return b"eyJ" in query and any(
        part.startswith(b"eyJ") and is_jwt(part) for part in _VALUES.split(query)
    )


def _may_be_named(principal: str) -> bool:
    """True if an issuer or a CA may name this principal."""
    return is_principal(principal) and principal != FIRST


def resource_of(operation: Operation, varying: Sequence[bytes]) -> str:
    """The resource of an operation, from the variable parts of its path. Raises `Malformed`,
    `Invalid`."""
    on = operation.on
    if on is Resource.NAMESPACE:
        return f"namespace:{path_text(varying[0])}"
    if on in (Resource.TOPIC, Resource.GROUP, Resource.QUEUE):
        resource = f"{on.value}:{path_text(varying[0])}:{path_text(varying[1])}"
        return resource if on is Resource.TOPIC else f"{resource}/{path_text(varying[2])}"
    return str(on.value)
