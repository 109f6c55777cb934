"""Tokens and grants, kept as records in the map `metadata`.

    change ─▶ compare-and-set ─▶ `access/changes` moves ─▶ other instances know ─▶ answered

Invariants

* An instance knows the records as of its last read of `access/changes`. Every instance knows a
  change that was answered before it answers its next request (`cluster.fence`).
* A token is stored as its digest and the verifiers of SCRAM. Its text is only in the answer to the
  request that created it.
* The first administrator is created with a token that is valid for that one call.
"""

import secrets
import threading
from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

import msgspec

from tms.access import scram
from tms.access.grants import Grants
from tms.access.sessions import ConsoleSessions
from tms.access.tokens import ID_BYTES, SECRET_BYTES, digest, make
from tms.errors import Conflict, DataCorrupt, Forbidden, Invalid, NotFound, StorageUnavailable
from tms.model import keys
from tms.model.access import (
    EVERYBODY,
    EXPIRES_S_MAX,
    Access,
    AccessDecision,
    Credential,
    Grant,
    Identity,
    NewToken,
    Quota,
    SessionInfo,
    TokenInfo,
    check_grantee,
    check_pattern,
    check_principal,
    check_quota,
    check_resource,
    check_verb,
)
from tms.model.topic import Durability
from tms.runtime.clock import Clock
from tms.runtime.decoding import from_json
from tms.store.base import Map, pages

FIRST = "first-administrator"  # the principal of the token that makes the first one
_OF_FIRST = Grant(FIRST, Access.MANAGE, "access")
T = TypeVar("T")
_ATTEMPTS = 64
_SCAN_BYTES = 1 << 20


class TokenRecord(msgspec.Struct, frozen=True):
    """A token in the store. `scram` are its verifiers by algorithm; a token that an earlier version
    made has none."""

    principal: str
    digest: str
    created_ms: int
    expires_ms: int = 0
    scram: dict[str, str] = {}


class _ReadRecords(msgspec.Struct, frozen=True):
    """The records as they were read."""

    changes: bytes | None
    tokens: dict[str, TokenRecord]  # by id
    by_digest: dict[str, TokenRecord]
    by_principal: dict[str, list[TokenRecord]]
    grants: dict[str, Grants]  # by principal, with those of everybody
    quotas: dict[str, Quota]  # by principal


class Others(Protocol):
    """Other instances."""

    def announce(self) -> None:
        """Tell them that something has changed: they look before they answer."""
        ...


class AccessRecords:
    """The tokens and grants of a store; see `api.access.AccessApi`. Thread-safe. `others` are the
    other instances that have it."""

    def __init__(self, metadata: Map, clock: Clock, others: Others | None = None) -> None:
        self._metadata = metadata
        self._clock = clock
        self._others = others
        self._lock = threading.Lock()  # one at a time reads
        self._known: _ReadRecords | None = None
        self.when_changed: Callable[[], None] = lambda: None
        self.sessions = ConsoleSessions(metadata, clock, self._is_valid)

    # -- asking ------------------------------------------------------------------------------------

    def token(self, text: bytes) -> TokenRecord | None:
        """The record of the token with this text; None if there is none or it has expired."""
        return self.valid(digest(text))

    def valid(self, digest: str) -> TokenRecord | None:
        """The record of the token with this digest; None if there is none or it has expired."""
        record = self._read().by_digest.get(digest)
        return None if record is None or self._has_expired(record) else record

    def tokens_of(self, principal: str) -> list[TokenRecord]:
        """The valid tokens of a principal."""
        tokens = self._read().by_principal.get(principal, ())
        return [one for one in tokens if not self._has_expired(one)]

    def grants(self, principal: str) -> Grants:
        """The grants of a principal, with those of everybody."""
        grants = self._read().grants
        return grants.get(principal) or grants[EVERYBODY]

    def quota(self, principal: str) -> Quota | None:
        """The quota of a principal; None: unlimited."""
        quotas = self._read().quotas
        return quotas.get(principal) or quotas.get(EVERYBODY)

    @property
    def has_administrator(self) -> bool:
        """True if any principal may manage access and has a valid token."""
        known = self._read()
        return any(
            self.grants(one.principal).find(Access.MANAGE, "access") is not None
            for one in known.tokens.values()
            if one.principal != FIRST
        )

    def refresh(self) -> None:
        """Read the records again if they have changed."""
        known = self._known
        if known is not None and self._metadata.get(keys.ACCESS_CHANGES) != known.changes:
            self._known = None
            self._read()
            self.when_changed()

    # -- the operations ----------------------------------------------------------------------------

    def list_tokens(self) -> list[TokenInfo]:
        """All tokens, by principal, without their secrets."""
        tokens = self._read().tokens.items()
        found = [TokenInfo(id, t.principal, t.created_ms, t.expires_ms) for id, t in tokens]
        return sorted(found, key=lambda one: (one.principal, one.created_ms, one.id))

    def create_token(
        self, principal: str, expires_s: float | None = None, *, caller: str = ""
    ) -> NewToken:
        """A new token of a principal. The first administrator, created with the first token, may do
        everything."""
        check_principal(principal)
        if principal == FIRST:
            raise Invalid(f"The principal {FIRST} is not for people.", field="principal")
        new = self._make(principal, expires_s)
        if caller == FIRST:
            self._replace_first(new)
        self._changed()
        return new

    def revoke_token(self, id: str) -> None:
        """Let a token be valid no more, and with it its sessions; or end a session. Raises
        `NotFound`."""
        key = keys.TOKEN_PREFIX + id.encode()
        raw = self._metadata.get(key)
        if raw is None:
            if not self.sessions.end(id):
                raise NotFound(f"There is no token {id!r:.40}; see `tms token list`.")
            return
        self._metadata.delete([key])
        self._changed()
        self.sessions.end_those_of(id, _decoded(key, raw, TokenRecord).principal)

    def list_sessions(self) -> list[SessionInfo]:
        """All sessions of the console, and links for them, that are valid, by principal."""
        return self.sessions.all()

    def create_session(
        self, one_time: bool = False, *, shown: Credential | None = None
    ) -> NewToken:
        """A session of the console for the caller, or a link that becomes one, once. It ends with
        the token that the caller shows. Raises `Conflict` without access control."""
        return self.sessions.create(_required(shown), one_time)

    def redeem_link(self, *, shown: Credential | None = None) -> NewToken:
        """The session for the link that the caller shows as its token. Raises `NotFound` for
        another credential, `Unauthenticated` if the link was used already."""
        return self.sessions.redeem(_required(shown))

    def end_session(self, *, shown: Credential | None = None) -> None:
        """End the session that the caller shows. Raises `NotFound` for another credential."""
        credential = _required(shown)
        if not credential.session:
            raise NotFound("This credential is no session of the console; there is none to end.")
        self.sessions.end(credential.session)

    def list_grants(self, principal: str | None = None) -> list[Grant]:
        """All grants, or those of a principal. Raises `Invalid`."""
        if principal is not None:
            check_grantee(principal)
        known = self._read()
        found = {grant for grants in known.grants.values() for grant in grants.all}
        wanted = found if principal is None else {g for g in found if g.principal == principal}
        return sorted(wanted, key=str)

    def add_grant(self, principal: str, verb: str, pattern: str) -> Grant:
        """Let a principal, or everybody (`*`), do something with what a pattern covers."""
        grant = _checked(principal, verb, pattern)
        self._put_grant(grant)
        self._changed()
        return grant

    def remove_grant(self, principal: str, verb: str, pattern: str) -> None:
        """Take a grant away. Raises `NotFound`."""
        grant = _checked(principal, verb, pattern)
        if self._metadata.get(_key(grant)) is None:
            raise NotFound(f"There is no grant {grant}; see `tms grant list {principal}`.")
        self._metadata.delete([_key(grant)])
        self._changed()

    def list_quotas(self) -> list[Quota]:
        """All quotas, by principal."""
        return sorted(self._read().quotas.values(), key=lambda one: one.principal)

    def set_quota(
        self,
        principal: str,
        requests_s: float | None = None,
        bytes_in_s: float | None = None,
        bytes_out_s: float | None = None,
    ) -> Quota:
        """Bound how much a principal may ask of an instance on average over a second; `*`: each one
        that has no quota of its own."""
        quota = check_quota(Quota(principal, requests_s, bytes_in_s, bytes_out_s))
        key = keys.QUOTA_PREFIX + principal.encode()
        self._metadata.write([(key, msgspec.json.encode(quota))], Durability.SYNCED)
        self._changed()
        return quota

    def remove_quota(self, principal: str) -> None:
        """Bound it no more. Raises `NotFound`."""
        key = keys.QUOTA_PREFIX + check_grantee(principal).encode()
        if self._metadata.get(key) is None:
            raise NotFound(f"{principal} has no quota; see `tms quota list`.")
        self._metadata.delete([key])
        self._changed()

    def explain(self, principal: str, verb: str, resource: str) -> AccessDecision:
        """The decision on a principal, a verb and a resource, with the grant that allows it."""
        grants = self.grants(check_principal(principal))
        grant = grants.find(check_verb(verb), check_resource(resource))
        return AccessDecision(grant is not None, grant)

    def whoami(self, *, caller: str = "") -> Identity:
        """The caller's principal, its grants and its quota."""
        return Identity(caller, self.grants(caller).all)

    # -- of the service ----------------------------------------------------------------------------

    def first_token(self) -> str:
        """A new token for creating the first administrator; it replaces an unused one."""
        self._drop_first()
        token = self._make(FIRST, None).token
        self._put_grant(_OF_FIRST)
        self._changed()
        return token

    def forget_peers(self) -> None:
        """Drop the secret that instances of earlier versions shared. It proves nothing any more."""
        if self._metadata.get(keys.PEER_SECRET) is not None:
            self._metadata.delete([keys.PEER_SECRET])

    # -- parts -------------------------------------------------------------------------------------

    def _make(self, principal: str, expires_s: float | None) -> NewToken:
        now_ms = self._clock.now_ms()
        if expires_s is not None and not 0 < expires_s <= EXPIRES_S_MAX:
            raise Invalid(
                f"expires_s is more than 0 and at most {EXPIRES_S_MAX} (ten years), got "
                f"{expires_s!r:.40}.",
                field="expires_s",
            )
        expires_ms = 0 if expires_s is None else now_ms + max(1, round(1_000 * expires_s))
        token = make(secrets.token_bytes(ID_BYTES + SECRET_BYTES))
        text = token.text.encode()
        salt = scram.salt_of(principal)
        verifiers = {
            one: scram.packed(scram.verifier(one, text, salt)) for one in scram.ALGORITHMS.values()
        }
        record = TokenRecord(principal, digest(text), now_ms, expires_ms, verifiers)
        key = keys.TOKEN_PREFIX + token.id.encode()
        if not self._metadata.compare_and_set(key, None, msgspec.json.encode(record)):
            raise StorageUnavailable("A token with this id is there already. Try again.")
        return NewToken(token.id, principal, now_ms, expires_ms, token.text)

    def _is_valid(self, id: str, principal: str) -> bool:
        """True if a token with this id is valid and of this principal."""
        token = self._read().tokens.get(id)
        return token is not None and token.principal == principal and not self._has_expired(token)

    def _has_expired(self, record: TokenRecord) -> bool:
        return 0 < record.expires_ms <= self._clock.now_ms()

    def _put_grant(self, grant: Grant) -> None:
        self._metadata.write([(_key(grant), b"{}")], Durability.SYNCED)

    def _replace_first(self, new: NewToken) -> None:
        """Make the principal of a new token the first administrator. One of several that use the
        one-time token together gets there. Raises `Forbidden`."""
        if not self._metadata.compare_and_set(_key(_OF_FIRST), b"{}", None):
            self._metadata.delete([keys.TOKEN_PREFIX + new.id.encode()])
            raise Forbidden(
                "The one-time token was used already. If you did not use it, somebody else made an "
                "administrator: start the service with `--new-administrator`, and look at `tms "
                "token list`."
            )
        self._put_grant(Grant(new.principal, Access.ALL, "*"))
        self._drop_first()

    def _drop_first(self) -> None:
        first = [
            keys.TOKEN_PREFIX + id.encode()
            for id, token in self._load().tokens.items()
            if token.principal == FIRST
        ]
        if first:
            self._metadata.delete([*first, _key(_OF_FIRST)])

    def _changed(self) -> None:
        for _ in range(_ATTEMPTS):
            raw = self._metadata.get(keys.ACCESS_CHANGES)
            more = b"%d" % (int(raw or b"0") + 1)
            if self._metadata.compare_and_set(keys.ACCESS_CHANGES, raw, more):
                break
        else:
            raise StorageUnavailable("Access is changed by others all the time. Try again.")
        if self._others is not None:
            self._others.announce()
        self.refresh()

    def _read(self) -> _ReadRecords:
        known = self._known
        if known is not None:
            return known
        with self._lock:
            if self._known is None:
                self._known = self._load()
            return self._known

    def _load(self) -> _ReadRecords:
        changes = self._metadata.get(keys.ACCESS_CHANGES)
        tokens = {
            key.removeprefix(keys.TOKEN_PREFIX).decode(): _decoded(key, raw, TokenRecord)
            for key, raw in self._rows(keys.TOKEN_PREFIX)
        }
        of_principals: dict[str, list[TokenRecord]] = {}
        for token in tokens.values():
            of_principals.setdefault(token.principal, []).append(token)
        by_principal: dict[str, list[Grant]] = {EVERYBODY: []}
        for key, _ in self._rows(keys.GRANT_PREFIX):
            grant = _grant_of(key)
            by_principal.setdefault(grant.principal, []).append(grant)
        everybody = by_principal[EVERYBODY]
        return _ReadRecords(
            changes,
            tokens,
            {token.digest: token for token in tokens.values()},
            of_principals,
            {
                principal: Grants(own if own is everybody else [*own, *everybody])
                for principal, own in by_principal.items()
            },
            {
                key.removeprefix(keys.QUOTA_PREFIX).decode(): _decoded(key, raw, Quota)
                for key, raw in self._rows(keys.QUOTA_PREFIX)
            },
        )

    def _rows(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        for page in pages(self._metadata, prefix, keys.prefix_stop(prefix), _SCAN_BYTES):
            yield from page


def _checked(principal: str, verb: str, pattern: str) -> Grant:
    return Grant(check_grantee(principal), check_verb(verb), check_pattern(pattern))


def _required(shown: Credential | None) -> Credential:
    if shown is None:
        raise Conflict("Access is not controlled here: the console asks nobody to sign in.")
    return shown


def _key(grant: Grant) -> bytes:
    path = f"{grant.principal}/{grant.verb}/{grant.pattern}"
    return keys.GRANT_PREFIX + path.encode()


def _grant_of(key: bytes) -> Grant:
    principal, verb, pattern = key.removeprefix(keys.GRANT_PREFIX).decode().split("/", 2)
    try:
        return Grant(principal, Access(verb), pattern)
    except ValueError as exc:
        raise _damaged(key, exc) from exc


def _decoded(key: bytes, raw: bytes, kind: type[T]) -> T:
    try:
        return from_json(raw, kind)
    except msgspec.MsgspecError as exc:
        raise _damaged(key, exc) from exc


def _damaged(key: bytes, why: Exception) -> DataCorrupt:
    return DataCorrupt(
        f"The record `{key.decode()}` of the store is damaged ({why}). Nobody is let in by it: "
        "remove it, and create the token or grant again."
    )
