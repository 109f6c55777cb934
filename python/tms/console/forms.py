"""Forms: what a browser sends, and the token that proves that it was the console's own form.

    browser key (cookie) ─┐
    session               ├▶ HMAC ─▶ token in each form ─▶ checked when the form comes back
    time                  ┘

* A page of another origin can send a form, but it knows neither the browser's key nor a token.
* A token is of one browser and one session: after signing out, or in as another principal, forms
  that are still open are refused. So they are after `FORM_S`.
* Nothing is stored: each instance of a cluster checks what another one has made.
"""

import hmac
import secrets
from collections.abc import Mapping
from hashlib import sha256
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from tms.errors import Forbidden, Invalid, Malformed, UnsupportedMedia
from tms.runtime.clock import Clock

FORM_TYPE = b"application/x-www-form-urlencoded"
FORM_BYTES_MAX = 12 << 20  # a message of 8 MiB and its escapes
OPEN_BYTES_MAX = 64 << 10  # of a visitor without a session
FIELDS_MAX = 1_000
FORM_S = 12 * 3_600
KEY_BYTES = 32
TOKEN_FIELD = "form"


class FormKey(NamedTuple):
    """The secret behind the tokens of a visitor's forms. `browser`: of its cookie; `session`: the
    session's text, empty without one."""

    browser: str
    session: str

    def token(self, clock: Clock) -> str:
        """A token for a form that is shown now."""
        made_s = clock.now_ms() // 1_000
        return f"{made_s}.{self._proof(made_s)}"

    def require(self, token: str, clock: Clock) -> None:
        """Raise `Forbidden` unless this token was made for this browser and session, lately."""
        made, _, proof = token.partition(".")
        made_s = int(made) if made.isascii() and made.isdigit() and len(made) <= 12 else 0
        if not hmac.compare_digest(proof.encode(), self._proof(made_s).encode()):
            raise Forbidden(
                "This form is not of this session: it was opened before you signed in or out, or "
                "by another page. Nothing was changed. Load the page again and repeat it."
            )
        if clock.now_ms() // 1_000 - made_s > FORM_S:
            raise Forbidden(
                f"This form is older than {FORM_S // 3_600} hours. Nothing was changed. Load the "
                "page again and repeat it."
            )

    def _proof(self, made_s: int) -> str:
        text = f"tms console form\n{made_s}\n{self.session}".encode()
        return hmac.new(self.browser.encode(), text, sha256).hexdigest()


def new_browser_key() -> str:
    """A key for a browser that has none."""
    return secrets.token_urlsafe(KEY_BYTES)


def fields_of(content_type: bytes, body: bytes) -> Mapping[str, list[str]]:
    """The fields of a form, by name. Raises `UnsupportedMedia`, `Malformed`, `Invalid`."""
    if content_type.partition(b";")[0].strip().lower() != FORM_TYPE:
        raise UnsupportedMedia(f"A form is sent as {FORM_TYPE.decode()}.")
    return pairs_of(body)


def pairs_of(encoded: bytes) -> Mapping[str, list[str]]:
    """The values of a query or form, by name. Raises `Malformed`, `Invalid`."""
    fields: dict[str, list[str]] = {}
    parts = encoded.split(b"&", FIELDS_MAX) if encoded else ()
    if len(parts) > FIELDS_MAX:
        raise Invalid(f"A form or query has at most {FIELDS_MAX} fields.")
    for part in parts:
        name, _, value = part.replace(b"+", b" ").partition(b"=")
        try:
            text = unquote_to_bytes(value).decode()
            fields.setdefault(unquote_to_bytes(name).decode(), []).append(text)
        except UnicodeDecodeError as exc:
            raise Malformed(f"The field {name[:60]!r} is not UTF-8: {exc.reason}.") from exc
    return fields
