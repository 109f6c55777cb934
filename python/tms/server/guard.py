"""Who asks, and whether that one may: every decision about access is made here, from the
declaration of the operation.

    token, JWT of the issuer that is trusted, or client certificate ─▶ principal
    principal, and verb and resource of the operation ─▶ a grant, or 403 ─▶ audit log
    instance of the cluster, by its proof (`cluster/identity`) ─▶ the principal that it names

Invariants

* What no grant covers is refused. What is not declared for anybody is asked for with a name.
* A principal whose token was revoked, or whose grant was taken away, gets nothing from then on: the
  answers that wait are ended, too. So are they once the token expires.
* A token is looked up before the body of its request is read; a wrong one costs its sender time,
  and nobody else.
* Whom an issuer or a CA names is a principal like others, and none of those that TMS makes itself.
* No token is logged, neither a valid one nor a wrong one.
* A request with a proof that does not hold is refused, whatever else it shows.
"""

import asyncio
import math
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence

from tms.access.jwt import UnknownKey, is_jwt
from tms.access.quotas import Meter
from tms.access.records import FIRST, AccessRecords
from tms.api.operation import Operation, Resource
from tms.clock import Clock
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
    Overloaded,
    TMSError,
    TransactionNotFound,
    Unauthenticated,
    Unavailable,
)
from tms.events import EventLog
from tms.model.access import Access, is_principal
from tms.model.topic import TopicName
from tms.model.transaction import Commit, CommitResult
from tms.server.forwarding import HOP, PEER, PRINCIPAL
from tms.server.http.exchange import Exchange
from tms.server.http.request import path_text
from tms.server.issuer import TrustedIssuer

AUTHORIZATION = b"authorization"
DECISIONS_MAX = 100_000  # remembered; with one more all are made anew
RESOURCE_CHARS_MAX = 600  # of one that is remembered: a kind, a namespace, a topic and a group
TOKEN_BYTES_MAX = 8 << 10
GUESSERS_MAX = 4_096  # addresses and reasons of which refusals are counted
GUESSES_FREE = 5  # wrong tokens of an address that are answered at once
GUESSES_FORGOTTEN_S = 60.0
GUESS_S = 1.0  # that an answer to a wrong token waits then
KEY_WAIT_S = 2.0  # for the view that has the key of an instance that asks
KEY_LOOK_S = 0.02  # until the first look; twice as long until each next one
EXPIRY_S = 1.0  # after its token has expired, at the latest, a request that waits is ended
INSTANCE = b"@instance"  # asks for itself; no principal is called so
_BEARER = b"bearer "
_A_TOKEN = re.compile(rb"tms_[0-9a-f]{12}_[0-9a-f]{64}")
_VALUES = re.compile(rb"[&=]")
_WAITING = ("fetch", "receive")  # operations that may wait for long
_INSTANCE = INSTANCE.decode()
_audit = EventLog("tms.audit")
_WRITTEN_DOWN = (Access.MANAGE, Access.OPERATE)


class Guard:
    """Admits requests. Used by the event loop's thread, but for `require…` and `changed`.
    `audits_all`: also what was allowed and changes nothing but messages is written down; `issuer`:
    whose tokens are believed besides those of the records; `identity`: of this instance, None where
    there can be no others, so that no proof is believed."""

    def __init__(
        self,
        records: AccessRecords,
        clock: Clock,
        identity: InstanceIdentity | None,
        audits_all: bool = False,
        issuer: TrustedIssuer | None = None,
    ) -> None:
        self._records = records
        self._issuer = issuer
        self._clock = clock
        self._identity = identity
        self._audits_all = audits_all
        self._decisions: dict[tuple[str, Access, str], bool] = {}
        self._active: dict[Exchange, list[tuple[Access, str]]] = {}  # and what each needs
        self._expiring: dict[Exchange, int] = {}  # those that wait, and when their tokens expire
        self._ending: asyncio.TimerHandle | None = None  # looks at them
        self._meters: dict[str, Meter] = {}  # of principals that have a quota
        self._refusals: OrderedDict[tuple[str, str], tuple[int, float]] = OrderedDict()
        self._loop: asyncio.AbstractEventLoop | None = None
        records.when_changed = self.changed
        if issuer is not None:
            issuer.when_changed = self.changed

    async def admit(
        self, exchange: Exchange, operation: Operation, varying: Sequence[bytes]
    ) -> None:
        """Let a request pass that may be answered; `exchange.principal` is who asks. Raises
        `Unauthenticated`, `Forbidden`, `Malformed`."""
        if operation.access is Access.OPEN:
            return
        resource = resource_of(operation, varying)
        await self._admit(exchange, operation, resource)

    async def admit_foreign(
        self, exchange: Exchange, verb: Access, resource: str, lists: Resource | None = None
    ) -> None:
        """The same for a request of another protocol; `lists` is what an operation declares."""
        await self._identify(exchange)
        self._measure(exchange)
        self._active[exchange] = []
        if lists is not None:
            self._require_list(exchange, resource, lists)
        else:
            self.require(exchange, verb, resource)

    def leave(self, exchange: Exchange) -> None:
        """A request was answered."""
        self._active.pop(exchange, None)
        self._expiring.pop(exchange, None)
        meter = self._meters.get(exchange.principal) if self._meters else None
        if meter is not None:
            meter.end(exchange.received, exchange.sent - exchange.charged)

    def charge(self, exchange: Exchange) -> float:
        """Count what was sent so far of an answer that goes on; how long it is to wait before it
        does, for its principal's quota."""
        meter = self._meter(exchange)
        if meter is None:
            return 0.0
        meter.end(0, exchange.sent - exchange.charged)
        exchange.charged = exchange.sent
        return meter.wait_s(self._clock.monotonic_s())

    async def _admit(self, exchange: Exchange, operation: Operation, resource: str) -> None:
        exchange.operation = operation.name
        if operation.on is Resource.INSTANCE:
            await self._believe(exchange)
            if self._audits_all:
                _audit.info("instance_asked", **_facts(exchange))
            return
        await self._identify(exchange)
        self._measure(exchange)
        if operation.api != "access":  # whose answer may be about the change that ends others
            self._active[exchange] = []
        if operation.lists is not None:
            self._require_list(exchange, resource, operation.lists)
        elif operation.access is not Access.KNOWN:
            self.require(exchange, operation.access, resource)

    # -- who ---------------------------------------------------------------------------------------

    async def _identify(self, exchange: Exchange) -> None:
        self._loop = self._loop or asyncio.get_running_loop()
        if exchange.query and has_token(exchange.query):
            self._note_refusal(exchange, "token in a URL")
            raise Malformed(
                "A token does not belong into a URL, where logs keep it: send it as `Authorization:"
                " Bearer TOKEN`, and revoke this one."
            )
        if PEER in exchange.headers:
            await self._believe(exchange)
            exchange.principal = exchange.headers.get(PRINCIPAL, INSTANCE).decode("latin-1")
            return
        try:
            exchange.principal, expires_ms = await self._known(exchange)
        except (Unauthenticated, Unavailable):
            if AUTHORIZATION not in exchange.headers:
                self._note_refusal(exchange, "no token")
            elif self._note_refusal(exchange, "wrong token") > GUESSES_FREE:
                await asyncio.sleep(GUESS_S)  # a client that guesses waits, and no other
            raise
        if expires_ms and exchange.operation in _WAITING:
            self._expiring[exchange] = expires_ms
            if self._ending is None:
                self._ending = self._loop.call_later(EXPIRY_S, self._end_expired)

    async def _known(self, exchange: Exchange) -> tuple[str, int]:
        """Who asks, after its issuer was asked for keys if that may help."""
        try:
            return self._shown(exchange)
        except UnknownKey:
            if self._issuer is None or not await self._issuer.refetched():
                raise
            return self._shown(exchange)

    def _shown(self, exchange: Exchange) -> tuple[str, int]:
        """Who asks by its token or certificate, and when that token expires, in ms since 1970; 0:
        never."""
        authorization = exchange.headers.get(AUTHORIZATION)
        if authorization is None:
            name = exchange.peer_certificate_name
            if HOP in exchange.headers:
                name = None  # it is the one of the instance that forwards
            if name is not None and _may_be_named(name):
                return name, 0
            raise Unauthenticated(
                "This service wants to know who asks: send `Authorization: Bearer TOKEN`, "
                "tms.connect(url, token=…), or TMS_TOKEN. An administrator makes one with `tms "
                "token create`."
            )
        token = authorization[len(_BEARER) :].strip()
        if authorization[: len(_BEARER)].lower() != _BEARER or not token:
            raise Unauthenticated("Only `Authorization: Bearer TOKEN` is understood.")
        if len(token) <= TOKEN_BYTES_MAX:
            if self._issuer is not None and b"." in token:  # which those of the records have not
                return self._named_by_issuer(self._issuer, token)
            record = self._records.token(token)
            if record is not None:
                return record.principal, record.expires_ms
        raise Unauthenticated(
            "The token is not valid here: it was mistyped, revoked, or has expired. Ask an "
            "administrator for another one."
        )

    def _named_by_issuer(self, issuer: TrustedIssuer, token: bytes) -> tuple[str, int]:
        verified = issuer.verified(token)
        if not _may_be_named(verified.principal):
            raise Unauthenticated(
                f"The token names {verified.principal!r:.80}, which no principal can be called: 1 "
                "to 128 of A-Z a-z 0-9 _ . @ -, beginning with a letter, a digit or _. Let the "
                "service take another claim (jwt.principal)."
            )
        return verified.principal, verified.expires_ms

    async def _believe(self, exchange: Exchange) -> None:
        """Let a request of an instance pass; `exchange.instance` is which. Raises `Forbidden`,
        `Unavailable`, `SlowRequest`, `Disconnected`."""
        try:
            if self._identity is None or PEER not in exchange.headers:
                raise Forbidden("This is for instances of the cluster only.")
            proven = await self._proven(self._identity, exchange)
            if is_covered(exchange.content_length):
                body = covered(exchange.content_length, (await exchange.whole(),))
            else:
                body = covered(exchange.content_length, ())
            if body != proven.body:
                raise Forbidden("The header TMS-Peer proves another body than this one.")
        except (Forbidden, Unavailable) as error:
            self._note_refusal(exchange, "no proof of an instance", error=error.message)
            raise
        exchange.instance = proven.instance
        if proven.first:
            _audit.info("instance_believed", **_facts(exchange))

    async def _proven(self, identity: InstanceIdentity, exchange: Exchange) -> Proven:
        """The proof, checked once this instance sees the one that made it."""
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

    def _note_refusal(self, exchange: Exchange, why: str, **also: str) -> int:
        """Count the requests of an address that were refused lately for this reason. The first ones
        are written down, with what is said `also`, and of many ever fewer."""
        now_s = self._clock.monotonic_s()
        key = (exchange.peer_address, why)
        count, since_s = self._refusals.pop(key, (0, now_s))
        if now_s - since_s > GUESSES_FORGOTTEN_S:
            count, since_s = 0, now_s
        count += 1
        self._refusals[key] = count, since_s
        while len(self._refusals) > GUESSERS_MAX:
            self._refusals.popitem(last=False)
        if count <= GUESSES_FREE or not count & (count - 1):  # a power of two
            _audit.warning("access_refused", why=why, count=count, **also, **_facts(exchange))
        return count

    # -- how much ----------------------------------------------------------------------------------

    def _measure(self, exchange: Exchange) -> None:
        """Raise `Overloaded` for who has asked for as much as its quota lets it."""
        meter = self._meter(exchange)
        if meter is None:
            return
        wait_s = meter.wait_s(self._clock.monotonic_s())
        if wait_s > 0:
            self._note_refusal(exchange, "quota")
            exchange.principal = ""  # which this does not count for
            raise Overloaded(
                f"The quota of {meter.quota.principal} is used up. Try again in {wait_s:.3g} s.",
                retry_after_s=max(1, math.ceil(wait_s)),
            )
        meter.begin()

    def _meter(self, exchange: Exchange) -> Meter | None:
        """What is left of the quota of who asks; None without one. What an instance forwards it
        has measured itself."""
        if exchange.instance:
            return None
        if (quota := self._records.quota(exchange.principal)) is None:
            return None
        meter = self._meters.get(exchange.principal)
        if meter is None or meter.quota != quota:
            meter = self._meters[exchange.principal] = Meter(quota, self._clock.monotonic_s())
        return meter

    # -- what --------------------------------------------------------------------------------------

    def require(self, exchange: Exchange, verb: Access, resource: str) -> None:
        """Raise `Forbidden` unless who asks may do this."""
        allowed = self._may(exchange.principal, verb, resource)
        if exchange in self._active:
            self._active[exchange].append((verb, resource))
        if exchange.principal == _INSTANCE:
            return
        if not allowed or self._audits_all or verb in _WRITTEN_DOWN:
            self._write_down(exchange, verb, resource, allowed)
        if not allowed:
            also = ", or any other verb, which includes it" if verb is Access.OBSERVE else ""
            raise Forbidden(
                f"{exchange.principal} may not {verb} {resource}. An administrator allows it with "
                f"`tms grant add {exchange.principal} {verb} {resource}`{also}.",
                principal=exchange.principal,
                verb=verb,
                resource=resource,
            )

    def _require_list(self, exchange: Exchange, resource: str, lists: Resource) -> None:
        """Raise `Forbidden` unless who asks may see a list of what is in a resource, or some of
        what may be in it: `exchange.sees` says what, then."""
        principal, within = exchange.principal, _within(resource, lists)
        grants = self._records.grants(principal)
        reaches = any(grants.reach_into(_within(resource, one)) for one in (lists, Resource.TOPIC))
        if self._may(principal, Access.OBSERVE, resource) or not reaches:
            self.require(exchange, Access.OBSERVE, resource)
            return

        def sees(name: str) -> bool:
            found = self._records.grants(principal).find(Access.OBSERVE, within + name)
            return found is not None

        exchange.sees = sees
        if self._audits_all:
            self._write_down(exchange, Access.OBSERVE, f"{within}*", True)

    def _may(self, principal: str, verb: Access, resource: str) -> bool:
        if principal == _INSTANCE:
            return True
        key = (principal, verb, resource)
        decisions = self._decisions  # before the grants: what is older goes with them
        allowed = decisions.get(key)
        if allowed is None:
            allowed = self._records.grants(principal).find(verb, resource) is not None
            # What is refused, and names that nothing can have, would take the memory of others.
            if allowed and len(resource) <= RESOURCE_CHARS_MAX:
                if len(decisions) >= DECISIONS_MAX:
                    decisions.clear()
                decisions[key] = True
        return allowed

    def require_commit(self, exchange: Exchange, commit: Commit) -> None:
        """The same for everything that a transaction changes."""
        topics = {one.topic for one in commit.blocks} | {one.topic for one in commit.staged}
        for name in topics:
            self.require(exchange, Access.PUBLISH, topic_resource(name))
        for group, topic in {(one.key.group, one.key.topic) for one in commit.positions}:
            self.require(exchange, Access.CONSUME, f"group:{topic.namespace}:{topic.topic}/{group}")
        for group, topic in {(one.group, one.topic) for one in commit.settlements}:
            self.require(exchange, Access.CONSUME, f"queue:{topic.namespace}:{topic.topic}/{group}")

    def require_seen(self, exchange: Exchange, result: CommitResult) -> None:
        """Raise `TransactionNotFound` unless who asks may know where a commit went."""
        for name in {one.topic for one in result.appended}:
            if not self._may(exchange.principal, Access.OBSERVE, topic_resource(name)):
                raise TransactionNotFound(f"No transaction {result.transaction_id} is known.")

    def require_own(self, exchange: Exchange, id: int, client: str | None) -> None:
        """Raise `TransactionNotFound` unless a transaction is one of who asks, or that one operates
        all of them."""
        if client == exchange.principal:
            return
        try:
            self.require(exchange, Access.OPERATE, "transactions")
        except Forbidden:
            raise TransactionNotFound(f"No transaction {id} is known.") from None

    def _write_down(self, exchange: Exchange, verb: Access, resource: str, allowed: bool) -> None:
        write = _audit.info if allowed else _audit.warning
        write(
            "access_allowed" if allowed else "access_denied",
            verb=str(verb),
            resource=resource,
            **_facts(exchange),
        )

    def write_change(self, exchange: Exchange, changed: Mapping[str, object]) -> None:
        """Tokens, grants or quotas were changed: how, without secrets."""
        _audit.info(
            "access_changed",
            changed={name: value for name, value in changed.items() if value is not None},
            **_facts(exchange),
        )

    # -- changes -----------------------------------------------------------------------------------

    def changed(self) -> None:
        """Tokens or grants have changed. From any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._look_again)

    def _look_again(self) -> None:
        self._decisions = {}  # other threads may be adding to those before
        for principal in [*self._meters]:
            if self._records.quota(principal) is None:
                del self._meters[principal]
        for exchange, needed in [*self._active.items()]:
            if not self._is_still_known(exchange) or not all(
                self._may(exchange.principal, *one) for one in needed
            ):
                exchange.abort()

    def _end_expired(self) -> None:
        """End requests that wait for longer than their tokens are valid, now and again."""
        now_ms = self._clock.now_ms()
        for exchange in [one for one, at_ms in self._expiring.items() if at_ms <= now_ms]:
            del self._expiring[exchange]
            exchange.abort()
        self._ending = None
        if self._expiring and self._loop is not None:
            self._ending = self._loop.call_later(EXPIRY_S, self._end_expired)

    def _is_still_known(self, exchange: Exchange) -> bool:
        if exchange.instance:
            return True  # the instance that asks looks after it
        try:
            return self._shown(exchange)[0] == exchange.principal
        except TMSError:
            return False


def _facts(exchange: Exchange) -> dict[str, str]:
    """The principal of a request, and where it comes from, as the audit log has it."""
    forwarded = {"instance": exchange.instance} if exchange.instance else {}
    return {
        "principal": exchange.principal,
        "operation": exchange.operation,
        "request_id": exchange.request_id,
        "address": exchange.peer_address,
    } | forwarded


def has_token(query: bytes) -> bool:
    """Whether somebody has put a token into a query, or a part of a path."""
    if b"tms_" in query and _A_TOKEN.search(query):
        return True
    return b"eyJ" in query and any(
        part.startswith(b"eyJ") and is_jwt(part) for part in _VALUES.split(query)
    )


def _may_be_named(principal: str) -> bool:
    """Whether who is named so by an issuer or a CA is believed to be that principal."""
    return is_principal(principal) and principal != FIRST


def resource_of(operation: Operation, varying: Sequence[bytes]) -> str:
    """What an operation is about, from what varies in its path. Raises `Malformed`, `Invalid`."""
    on = operation.on
    if on is Resource.NAMESPACE:
        return f"namespace:{path_text(varying[0])}"
    if on in (Resource.TOPIC, Resource.GROUP, Resource.QUEUE):
        resource = f"{on.value}:{path_text(varying[0])}:{path_text(varying[1])}"
        return resource if on is Resource.TOPIC else f"{resource}/{path_text(varying[2])}"
    return str(on.value)


def _within(resource: str, lists: Resource) -> str:
    """How the resources begin that a list of what is in this one has."""
    kind, _, rest = resource.partition(":")
    return (
        f"{lists.value}:{rest}:" if kind == Resource.NAMESPACE.value else f"{lists.value}:{rest}/"
    )


def topic_resource(name: TopicName) -> str:
    """A topic as a resource."""
    return f"topic:{name.namespace}:{name.topic}"
