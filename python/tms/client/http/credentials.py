"""The token that a client shows a service.

* What is given wins over TMS_TOKEN, and that over the file TMS_TOKEN_FILE.
* No error shows a token.
* A file that other users can read is told of (`token_file_open`), not refused: secrets that
  containers mount are such files.
"""

import os
import re
import stat
from pathlib import Path

from tms.errors import ConfigError
from tms.runtime.events import EventLog

_TOKEN = re.compile(r"[!-~]{1,8192}")
_log = EventLog(__name__)


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
        with path.open(encoding="ascii") as file:
            status = os.fstat(file.fileno())
            token = file.read().strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"The token file {path} cannot be read: {exc}.") from exc
    if not token:
        raise ConfigError(f"The token file {path} is empty.")
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISREG(status.st_mode) and mode & 0o077:
        fields = {"file": str(path), "mode": f"{mode:04o}", "mend": f"chmod 600 {path}"}
        _log.warning("token_file_open", why="other users can read the token", **fields)
    return token
