"""Protection of a service without access control from requests that web pages make a browser send.

    a page of evil.example lets its name resolve to this machine ─▶ `Host` is evil.example ─▶ 403
    any page posts a form, or text, to http://127.0.0.1:7070     ─▶ `Origin` is another ─▶ 403

Invariants

* `Host` is an address, a name that cannot be registered, or a name of the setting `server.hosts`.
* A request of a page of another origin changes nothing, unless the setting `server.cors` names the
  origin. An operation without a body takes none of a type that a form can send, for browsers that
  show no `Origin`; those with one want JSON, blocks, or headers that a form cannot send.
"""

import re
from collections.abc import Iterable
from ipaddress import ip_address

from tms.errors import Forbidden, UnsupportedMedia
from tms.server.forwarding import HOP
from tms.server.http.cors import Cors
from tms.server.http.exchange import Exchange

EVERY_HOST = "*"
HOST = b"host"
ORIGIN = b"origin"
CONTENT_TYPE = b"content-type"
REMEMBERED_MAX = 1_000
_NAME = re.compile(r"[a-z0-9_]([a-z0-9_.-]{0,253}[a-z0-9_])?")
_PORT = re.compile(r":[0-9]{0,5}$")
# Operators of networks give names below these, registries never do (RFC 6761, 6762, 8375).
_LOCAL = (".localhost", ".local", ".internal", ".test", ".home.arpa")
_READING = ("GET", "HEAD", "OPTIONS")
_FORMS = (b"application/x-www-form-urlencoded", b"multipart/form-data", b"text/plain")


def hosts_in(text: str) -> frozenset[str]:
    """The names in a setting. Raises `ValueError` that says what is wrong."""
    names = frozenset(one.strip().lower() for one in text.split(",") if one.strip())
    for name in sorted(names - {EVERY_HOST}):
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"{name!r} is no name of a host: write tms.example without scheme, port and path, "
                "several separated by commas, or `*`"
            )
    return names


class Strangers:
    """Refuses what pages have a browser send. `names`: further ones by which the service is
    reached."""

    def __init__(self, names: Iterable[str], cors: Cors | None) -> None:
        self._names = frozenset(names)
        self._cors = cors
        self._known: set[bytes] = set()  # values of Host that are fine

    def require_none(self, exchange: Exchange, takes_body: bool) -> None:
        """Raise `Forbidden` for a request that a page of another origin may have made,
        `UnsupportedMedia` for what a form sends to an operation that takes no body."""
        headers = exchange.headers
        host = headers.get(HOST, b"")
        if host not in self._known:
            self._require_known(host.decode("latin-1").lower())
            if len(self._known) < REMEMBERED_MAX:
                self._known.add(host)
        if exchange.method in _READING or HOP in headers:
            return
        if (origin := headers.get(ORIGIN)) is not None:
            self._require_own(origin, host)
        if takes_body:
            return
        if headers.get(CONTENT_TYPE, b"").partition(b";")[0].strip().lower() in _FORMS:
            raise UnsupportedMedia(
                "A web page can send a form or text to a service that asks nobody for a token, so "
                "a request of such a Content-Type changes nothing. Send the type of the data."
            )

    def _require_known(self, host: str) -> None:
        name = _PORT.sub("", host)
        if not name or EVERY_HOST in self._names or name in self._names:
            return
        if "." not in name or name.rstrip(".").endswith(_LOCAL) or _is_address(name):
            return
        raise Forbidden(
            f"The Host {host!r:.100} is not known here. A service that asks nobody for a token "
            "answers to addresses and local names only, because a web page can make a browser ask "
            f"for its own name here. Start it with `--hosts {name:.80}`, or with `--access on`.",
            header="Host",
        )

    def _require_own(self, origin: bytes, host: bytes) -> None:
        if origin.partition(b"://")[2] == host or (self._cors and self._cors.names(origin)):
            return
        raise Forbidden(
            f"A page of {origin.decode('latin-1')!r:.100} may not change anything here. Start the "
            "service with `--cors` and this origin, or with `--access on` and give it a token.",
            header="Origin",
        )


def _is_address(name: str) -> bool:
    try:
        ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True
