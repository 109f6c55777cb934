"""The token that a client shows a service.

* What is given wins over TMS_TOKEN, and that over the file TMS_TOKEN_FILE.
* No error shows a token.
"""

import os
import re
from pathlib import Path

from tms.errors import ConfigError

_TOKEN = re.compile(r"[!-~]{1,8192}")


def token_of(given: str | None) -> str:
    """The token to show; empty: none. Raises `ConfigError`."""
    if given is None:
        given = os.environ.get("TMS_TOKEN", "")
        file = os.environ.get("TMS_TOKEN_FILE")
        if not given and file:
            given = read_token(Path(file))
    if given and not _TOKEN.fullmatch(given):
        raise ConfigError("A token is 1 to 8192 printable characters of ASCII without spaces.")
    return given


def read_token(path: Path) -> str:
    """The token in a file. Raises `ConfigError`."""
    try:
        token = path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"The token file {path} cannot be read: {exc}.") from exc
    if not token:
        raise ConfigError(f"The token file {path} is empty.")
    return token
