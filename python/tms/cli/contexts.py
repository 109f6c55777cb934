"""The contexts of the command line: named services, with credentials.

    $XDG_CONFIG_HOME/tms/contexts/    0700; without XDG_CONFIG_HOME ~/.config/tms/contexts/
        NAME.json                     0600; url, token_file, ca, cert, key; see `Context`
        NAME.0123456789abcdef.token   0600; the token of NAME, if it was given as such
        selected                      0600; the name of the selected context
        .lock                         held with flock during changes

Invariants

* A context changes by one rename, to a whole one: a crash leaves the old one or the new one.
* A reader gets the URL and the token of the same context, also while it is saved again: the file of
  each token has a name of its own, and the context that refers to it is renamed into place after
  the token is written.
* Files that other users can read or write are not used, and no error shows a token.
* Nothing is made by reading.
"""

import contextlib
import fcntl
import os
import re
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from tms.client.http.credentials import read_token
from tms.errors import ConfigError, Invalid
from tms.runtime.decoding import from_json
from tms.runtime.disk import sync_path

CONTEXT_BYTES_MAX = 65_536
LOCK_TRIES, LOCK_PAUSE_S = 500, 0.02
READS_MAX = 3  # of a context that another process is saving
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SELECTED, _LOCK = "selected", ".lock"


class Context(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A service, and how to show oneself to it. Files are named by their whole paths, but for
    `token_file`, which may be one beside the context."""

    url: str
    token_file: str = ""
    ca: str = ""
    cert: str = ""
    key: str = ""

    @property
    def keeps_token(self) -> bool:
        """True if the token is stored beside the context, not in a file of the user's."""
        return bool(self.token_file) and not os.path.isabs(self.token_file)


class Contexts:
    """The contexts of this user. Raises `ConfigError` for what cannot be used."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        # A relative XDG_CONFIG_HOME is to be ignored, says the XDG Base Directory Specification.
        place = environ.get("XDG_CONFIG_HOME", "")
        base = Path(place) if os.path.isabs(place) else Path(os.path.expanduser("~/.config"))
        self._base = base  # relative without a home directory: no context exists then
        self.folder = base / "tms" / "contexts"

    def names(self) -> list[str]:
        """The names of all contexts, sorted."""
        try:
            entries = os.listdir(self.folder)
        except FileNotFoundError:
            return []
        except OSError as exc:
            _cannot("folder of contexts", self.folder, exc)
        names = (entry.removesuffix(".json") for entry in entries if entry.endswith(".json"))
        return sorted(name for name in names if _NAME.fullmatch(name))

    def selected(self) -> str | None:
        """The name of the selected context, which may be gone."""
        text = self._read(_SELECTED, "file of the selected context")
        name = None if text is None else text.decode("utf-8", "replace").strip()
        if name is not None and not _NAME.fullmatch(name):
            raise ConfigError(
                f"The file of the selected context {self.folder / _SELECTED} names none.",
                next="tms ctx select NAME",
            )
        return name

    def load(self, name: str) -> tuple[Context, str | None]:
        """The context with this name, and its token, if that is kept beside it."""
        check_name(name)
        context = self._context(name)
        for _ in range(READS_MAX):
            if not context.keeps_token:
                return context, None
            token = self._read(context.token_file, f"token of the context {name}")
            if token is not None:
                return context, token.decode("utf-8", "replace").strip()
            context = self._context(
                name
            )  # another process saved it meanwhile, or its token is gone
        raise ConfigError(
            f"The token of the context {name} is not there: {self.folder / context.token_file}.",
            next=f"save it again: tms ctx save {name} --token-file FILE",
        )

    def save(
        self,
        name: str,
        changes: Mapping[str, str],
        token: str | None,
        check: Callable[[Context, str | None], None],
    ) -> Context:
        """Make a context, or change one; settings that are not given stay. `token` is stored beside
        it. `check` raises for a context that cannot be used; then nothing has changed."""
        check_name(name)
        with self._locked():
            before = self._read(f"{name}.json", f"context {name}")
            fields: dict[str, Any] = dict(changes)
            if before is not None:
                fields = msgspec.structs.asdict(self._parsed(name, before)) | fields
            if not fields.get("url"):
                raise Invalid(f"The context {name} is new: say its service with --url.")
            if token is not None:
                fields["token_file"] = f"{name}.{os.urandom(8).hex()}.token"
            context = Context(**fields)
            check(context, token)
            if token is not None:
                self._write(context.token_file, token.encode() + b"\n")
            self._write(f"{name}.json", msgspec.json.format(msgspec.json.encode(context)) + b"\n")
            self._remove_tokens(name, context.token_file)
            return context

    def select(self, name: str) -> None:
        """Make this context the default of commands."""
        check_name(name)
        with self._locked():
            self._context(name)
            self._write(_SELECTED, name.encode() + b"\n")

    def remove(self, name: str) -> None:
        """Remove a context with the token that is kept beside it, also one that is malformed."""
        with self._locked():
            self.require(name)
            if self._read(_SELECTED, "file of the selected context") == name.encode() + b"\n":
                os.unlink(self.folder / _SELECTED)
            os.unlink(self.folder / f"{name}.json")
            self._remove_tokens(name, "")
            sync_path(self.folder)

    def require(self, name: str) -> None:
        """Raise for a context that is not there."""
        check_name(name)
        if not (self.folder / f"{name}.json").exists():
            self._unknown(name)

    def _context(self, name: str) -> Context:
        text = self._read(f"{name}.json", f"context {name}")
        if text is None:
            self._unknown(name)
        return self._parsed(name, text)

    def _parsed(self, name: str, text: bytes) -> Context:
        try:
            context = from_json(text, Context)
            if context.keeps_token and not _is_token(context.token_file, name):
                raise msgspec.ValidationError("token_file is no whole path")
        except msgspec.MsgspecError as exc:
            path = self.folder / f"{name}.json"
            raise ConfigError(
                f"The context {name} in {path} cannot be used: {exc}.",
                next=f"correct the file, or tms ctx rm {name} and save it again",
            ) from exc
        return context

    def _unknown(self, name: str) -> NoReturn:
        known = self.names()
        raise ConfigError(
            f"There is no context {name} in {self.folder}.",
            next=f"name one of these, or select it with `tms ctx select`: {', '.join(known)}"
            if known
            else f"make it: tms ctx save {name} --url URL",
        )

    def _read(self, entry: str, what: str) -> bytes | None:
        """The content of a file; None if it does not exist. Raises `ConfigError` if other users can
        reach it."""
        path = self.folder / entry
        try:
            _require_closed(self.folder, "folder of contexts", os.stat(self.folder))
            with open(path, "rb") as file:
                _require_closed(path, what, os.fstat(file.fileno()))
                text = file.read(CONTEXT_BYTES_MAX + 1)
        except FileNotFoundError:
            return None
        except OSError as exc:
            _cannot(what, path, exc)
        if len(text) > CONTEXT_BYTES_MAX:
            raise ConfigError(
                f"The {what} in {path} has more than {CONTEXT_BYTES_MAX} bytes.",
                next=f"inspect the file, and remove it: rm {path}",
            )
        return text

    def _write(self, entry: str, text: bytes) -> None:
        """Write a file in one durable step. A link in its place stays a link."""
        path = Path(os.path.realpath(self.folder / entry))
        new = path.with_name(f".{path.name}.new")
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(new)  # of who was killed while he wrote
            fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(fd, "wb") as file:
                os.fchmod(fd, 0o600)  # whatever the umask
                file.write(text)
                file.flush()
                os.fsync(fd)
            os.rename(new, path)
            sync_path(path.parent)
        except OSError as exc:
            _cannot("file", path, exc, "written")

    def _remove_tokens(self, name: str, kept: str) -> None:
        for entry in os.listdir(self.folder):
            if _is_token(entry.removeprefix(".").removesuffix(".new"), name) and entry != kept:
                os.unlink(self.folder / entry)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Alone among those who change contexts."""
        if not self._base.is_absolute():
            raise ConfigError(
                "This user has no home directory, so there is no place for contexts.",
                next="set XDG_CONFIG_HOME to a directory",
            )
        try:
            self.folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.folder.mkdir(mode=0o700, exist_ok=True)
            _require_closed(self.folder, "folder of contexts", os.stat(self.folder))
            fd = os.open(self.folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as exc:
            _cannot("folder of contexts", self.folder, exc, "written")
        with open(fd, "rb"):  # whose end ends the lock
            for _ in range(LOCK_TRIES):
                if _locks(fd):
                    break
                threading.Event().wait(LOCK_PAUSE_S)
            else:
                raise ConfigError(
                    f"Another tms has been changing {self.folder} for "
                    f"{LOCK_TRIES * LOCK_PAUSE_S:.0f} s.",
                    next="wait for it or end it, and try again",
                )
            yield


def check_name(name: str) -> str:
    """Raise `Invalid` for what cannot be the name of a context."""
    if not _NAME.fullmatch(name):
        raise Invalid(
            "The name of a context is 1 to 64 letters, digits, '.', '_' and '-', and begins with a "
            f"letter or digit, got {name!r:.100}."
        )
    return name


def token_in(context: Context, kept: str | None) -> str | None:
    """The token of a context that was loaded; None if it has none."""
    if kept is not None or not context.token_file:
        return kept
    return read_token(Path(context.token_file))


def _is_token(entry: str, name: str) -> bool:
    return re.fullmatch(re.escape(name) + r"\.[0-9a-f]{16}\.token", entry) is not None


def _require_closed(path: Path, what: str, status: os.stat_result) -> None:
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid not in (os.geteuid(), 0):
        raise ConfigError(
            f"The {what} {path} belongs to another user (uid {status.st_uid}).",
            next=f"remove it, or set XDG_CONFIG_HOME to a directory of your own ({path} is not)",
        )
    if mode & 0o077:
        wanted = "700" if stat.S_ISDIR(status.st_mode) else "600"
        raise ConfigError(
            f"Others can reach the {what} {path} (mode {mode:04o}).", next=f"chmod {wanted} {path}"
        )


def _cannot(what: str, path: Path, exc: OSError, do: str = "read") -> NoReturn:
    raise ConfigError(
        f"The {what} {path} cannot be {do}: {exc.strerror}.",
        next="mend that, set XDG_CONFIG_HOME to another directory, or name the service with --url",
    ) from exc


def _locks(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
