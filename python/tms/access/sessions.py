"""Sessions of people at the console, and one-time links with which they begin, kept as records in
the map `metadata`.

    token, JWT or certificate ─create─▶ session
                              ─create─▶ link ─redeem, once─▶ session ─end─▶ nothing

Invariants

* A session is valid only while the token with which it was made is, at most `SESSION_S`, and no
  longer than the token, JWT or session with which it was made.
* A link becomes a session once: its record is replaced by compare-and-set.
* The record of a session is read from the store whenever the session is shown. So an end counts at
  every instance at once, and making one costs other instances nothing.
* A principal has at most `SESSIONS_MAX` sessions and as many links: the oldest give way. Each new
  one removes expired ones, of its own principal and of one page of the others.
* The prefix of the keys is not the one of tokens: nothing that looks for tokens finds a session,
  and neither does an earlier release.
"""

import hmac
import secrets
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import NamedTuple

import msgspec

from tms.access.tokens import ID_BYTES, SECRET_BYTES, TOKEN, digest, make
from tms.errors import DataCorrupt, NotFound, StorageUnavailable, Unauthenticated
from tms.model import keys
from tms.model.access import Credential, NewToken, SessionInfo
from tms.runtime.clock import Clock
from tms.runtime.decoding import from_json
from tms.store.base import Map, pages

SESSION_S = 12 * 3_600
LINK_S = 60
SESSIONS_MAX = 32  # of a principal; and links
GROUP_BYTES = 2  # of an id: those of a principal are equal
_SCAN_BYTES = 1 << 20
_SWEEP_BYTES = 16 << 10
LINK_IS_OVER = (
    "The link is not valid any more: it lasts a minute, and for one use. Make another one with "
    "`tms console`. If it was used, and not by you, revoke the token that it was made with."
)


class SessionRecord(msgspec.Struct, frozen=True):
    """A session or a link in the store. `token`: the id of the token with which it was made;
    `session_expires_ms`: of the session that a link becomes; 0: this is a session."""

    principal: str
    digest: str
    created_ms: int
    expires_ms: int
    token: str = ""
    session_expires_ms: int = 0


class _StoredSession(NamedTuple):
    """A record as it was read."""

    key: bytes
    raw: bytes
    record: SessionRecord

    @property
    def id(self) -> str:
        return self.key.removeprefix(keys.SESSION_PREFIX).decode()

    @property
    def is_link(self) -> bool:
        return self.record.session_expires_ms > 0


class ConsoleSessions:
    """The sessions and links of a store. Thread-safe. `is_valid`: True if the token with this id is
    valid and of this principal."""

    def __init__(self, metadata: Map, clock: Clock, is_valid: Callable[[str, str], bool]) -> None:
        self._metadata = metadata
        self._clock = clock
        self._is_valid = is_valid

    def find(self, text: bytes) -> Credential | None:
        """The session or link with this text; None if there is none, or if it is over."""
        spelled = TOKEN.fullmatch(text)
        row = None if spelled is None else self._row(spelled[1].decode())
        if row is None or not hmac.compare_digest(row.record.digest, digest(text)):
            return None
        record = row.record
        shown = Credential(record.principal, record.expires_ms, record.token, row.id, row.is_link)
        return shown if self.is_lasting(shown) else None

    def is_lasting(self, shown: Credential) -> bool:
        """True if the token of a session is valid, and its time is not over. Reads nothing."""
        if shown.expires_ms <= self._clock.now_ms():
            return False
        return not shown.token or self._is_valid(shown.token, shown.principal)

    def all(self) -> list[SessionInfo]:
        """All that are valid, by principal."""
        found = [
            SessionInfo(
                row.id,
                row.record.principal,
                row.record.token,
                row.record.created_ms,
                row.record.expires_ms,
                row.is_link,
            )
            for row in self._rows(keys.SESSION_PREFIX)
            if self._lasts(row.record)
        ]
        return sorted(found, key=lambda one: (one.principal, one.created_ms, one.id))

    def create(self, shown: Credential, one_time: bool) -> NewToken:
        """A session of the principal that showed this, or a link for one."""
        now_ms = self._clock.now_ms()
        ends_ms = now_ms + 1_000 * SESSION_S
        if shown.expires_ms:
            ends_ms = min(ends_ms, shown.expires_ms)
        expires_ms = min(now_ms + 1_000 * LINK_S, ends_ms) if one_time else ends_ms
        own = secrets.token_bytes(ID_BYTES - GROUP_BYTES + SECRET_BYTES)
        token = make(_group(shown.principal) + own)
        text_digest = digest(token.text.encode())
        record = SessionRecord(shown.principal, text_digest, now_ms, expires_ms, shown.token)
        if one_time:
            record = msgspec.structs.replace(record, session_expires_ms=ends_ms)
        if not self._metadata.compare_and_set(_key(token.id), None, msgspec.json.encode(record)):
            raise StorageUnavailable("A session with this id is there already. Try again.")
        self._tidy(shown.principal)
        return NewToken(token.id, shown.principal, now_ms, expires_ms, token.text)

    def redeem(self, shown: Credential) -> NewToken:
        """The session that a link becomes. Raises `NotFound` for another credential,
        `Unauthenticated` if the link is not valid any more."""
        if not shown.is_link:
            raise NotFound("This credential is no one-time link; there is none to redeem.")
        row = self._row(shown.session)
        if row is None or not row.is_link or not self._lasts(row.record):
            raise Unauthenticated(LINK_IS_OVER)
        link = row.record
        now_ms = self._clock.now_ms()
        token = make(bytes.fromhex(row.id) + secrets.token_bytes(SECRET_BYTES))
        text_digest = digest(token.text.encode())
        expires_ms = link.session_expires_ms
        session = SessionRecord(link.principal, text_digest, now_ms, expires_ms, link.token)
        if not self._metadata.compare_and_set(row.key, row.raw, msgspec.json.encode(session)):
            raise Unauthenticated(LINK_IS_OVER)
        self._tidy(link.principal)
        return NewToken(token.id, link.principal, now_ms, expires_ms, token.text)

    def end(self, id: str) -> bool:
        """End a session or link; False if there is none."""
        row = self._row(id)
        if row is not None:
            self._metadata.delete([row.key])
        return row is not None

    def end_those_of(self, token: str, principal: str) -> None:
        """Remove what was made with a token of a principal."""
        own = self._rows(keys.SESSION_PREFIX + _group(principal).hex().encode())
        gone = [row.key for row in own if row.record.token == token]
        if gone:
            self._metadata.delete(gone)

    # -- parts -------------------------------------------------------------------------------------

    def _tidy(self, principal: str) -> None:
        """Remove the oldest of a principal that has too many, and some that are over."""
        group = _group(principal).hex().encode()
        rows = list(self._rows(keys.SESSION_PREFIX + group))
        own = [row for row in rows if row.record.principal == principal]
        own.sort(key=lambda row: row.record.created_ms, reverse=True)
        surplus = [row for kind in (False, True) for row in _of(own, kind)[SESSIONS_MAX:]]
        over = [row for row in (*rows, *self._some()) if self._is_over(row.record)]
        for row in (*surplus, *over):
            # Not `delete`: a link that has become a session meanwhile has the same key.
            self._metadata.compare_and_set(row.key, row.raw, None)

    def _some(self) -> list[_StoredSession]:
        """A page of records from anywhere."""
        start = keys.SESSION_PREFIX + secrets.token_hex(GROUP_BYTES).encode()
        stop = keys.prefix_stop(keys.SESSION_PREFIX)
        found = self._metadata.scan(start, stop, _SWEEP_BYTES)
        return [_decoded(key, raw) for key, raw in found]

    def _lasts(self, record: SessionRecord) -> bool:
        return self.is_lasting(Credential(record.principal, record.expires_ms, record.token))

    def _is_over(self, record: SessionRecord) -> bool:
        return record.expires_ms <= self._clock.now_ms()

    def _row(self, id: str) -> _StoredSession | None:
        raw = self._metadata.get(_key(id))
        return None if raw is None else _decoded(_key(id), raw)

    def _rows(self, prefix: bytes) -> Iterator[_StoredSession]:
        for page in pages(self._metadata, prefix, keys.prefix_stop(prefix), _SCAN_BYTES):
            for key, raw in page:
                yield _decoded(key, raw)


def _key(id: str) -> bytes:
    return keys.SESSION_PREFIX + id.encode()


def _group(principal: str) -> bytes:
    """The first bytes of the ids of a principal's sessions, which stand together."""
    return sha256(principal.encode()).digest()[:GROUP_BYTES]


def _of(rows: list[_StoredSession], is_link: bool) -> list[_StoredSession]:
    return [row for row in rows if row.is_link == is_link]


def _decoded(key: bytes, raw: bytes) -> _StoredSession:
    try:
        return _StoredSession(key, raw, from_json(raw, SessionRecord))
    except msgspec.MsgspecError as exc:
        raise DataCorrupt(
            f"The record `{key.decode()}` of the store is damaged ({exc}). Nobody is let in by it: "
            "remove it, and sign in again."
        ) from exc
