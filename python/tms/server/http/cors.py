"""Access of pages of other origins to answers (CORS, as in the Fetch standard).

* Answers have no CORS headers without the setting `server.cors`, nor for an origin that it does not
  name.
* No credentials of browsers (cookies, client certificates) are ever allowed: a page shows its token
  itself. So a page can do no more than the holder of its token.
* Every answer says that it depends on the origin, also an error: caches keep them apart.
"""

import re
from collections.abc import Iterable

from tms.api import routes

EVERY_ORIGIN = "*"
PREFLIGHT_S = 3_600  # that a browser remembers what it may ask
_ORIGIN = re.compile(r"https?://([a-z0-9.-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")
_DEFAULT_PORTS = ("http://", ":80"), ("https://", ":443")
_EXPOSED = (
    routes.NEXT_HEADER,
    routes.END_HEADER,
    routes.REACHED_HEADER,
    routes.OWNER_HEADER,
    routes.REQUEST_ID_HEADER,
    "Retry-After",
    "WWW-Authenticate",
    "Allow",
)
_SENT = ("Accept", "Authorization", "Content-Encoding", "Content-Type", "Idempotency-Key")
_VARY = b"vary: origin\r\n"
_EXPOSE = f"access-control-expose-headers: {', '.join(_EXPOSED)}\r\n".encode()
_PREFLIGHT = (
    f"access-control-allow-headers: {', '.join(_SENT)}\r\naccess-control-max-age: {PREFLIGHT_S}\r\n"
).encode()


def origins_in(text: str) -> frozenset[str]:
    """The origins in a setting. Raises `ValueError` that says what is wrong."""
    origins = frozenset(one.strip() for one in text.split(",") if one.strip())
    if EVERY_ORIGIN in origins:
        if len(origins) > 1:
            raise ValueError("`*` is every origin; leave out the others, or `*`")
        return origins
    for origin in sorted(origins):
        if not _ORIGIN.fullmatch(origin):
            raise ValueError(
                f"{origin!r} is no origin: write https://HOST or https://HOST:PORT as browsers do, "
                "in lower case and without a path, several separated by commas"
            )
        for scheme, port in _DEFAULT_PORTS:
            if origin.startswith(scheme) and origin.endswith(port):
                raise ValueError(
                    f"browsers leave out the usual port: write {origin.removesuffix(port)!r} in "
                    f"place of {origin!r}"
                )
    return origins


class Cors:
    """The CORS headers of answers."""

    def __init__(self, origins: Iterable[str]) -> None:
        self._heads = {origin.encode(): _head(origin) for origin in origins}
        self._else = self._heads.pop(EVERY_ORIGIN.encode(), _VARY)

    def head(self, origin: bytes | None) -> bytes:
        """The lines of an answer to a page of this origin; None: to no page."""
        return self._else if origin is None else self._heads.get(origin, self._else)

    def names(self, origin: bytes) -> bool:
        """True if pages of this origin may read answers."""
        return self.head(origin) is not _VARY

    def preflight(self, origin: bytes | None, method: bytes | None, allowed: list[str]) -> bytes:
        """Further lines of an answer to a browser that asks whether a page of this origin may send
        this method; empty unless it may."""
        is_known = origin is not None and self.names(origin)
        if not is_known or method is None or method.decode("latin-1") not in allowed:
            return b""
        return f"access-control-allow-methods: {', '.join(allowed)}\r\n".encode() + _PREFLIGHT


def _head(origin: str) -> bytes:
    vary = b"" if origin == EVERY_ORIGIN else _VARY
    return f"access-control-allow-origin: {origin}\r\n".encode() + vary + _EXPOSE
