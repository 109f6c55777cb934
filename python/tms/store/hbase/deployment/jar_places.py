"""The directories from which region servers read jars: one that all of them mount, or HDFS.

    /shared/tms, file:///shared/tms      files, which must be the same on every server of HBase
    hdfs://NAMENODE:PORT/tms             by the command `hdfs` when it is on the path,
                                         else by WebHDFS (--webhdfs http://NAMENODE:9870)

Invariants

* A jar appears under its name whole or not at all, and is read back before anything refers to it.
* An existing jar is not written again; one with other bytes under its name is replaced.
* Nothing is removed: region servers that restart read the jars that their tables name.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Protocol

from tms.errors import ConfigError, StorageUnavailable, TMSError
from tms.runtime.disk import sync_path
from tms.store.hbase.deployment.webhdfs import WebHDFS

COMMAND_S = 120.0
_HDFS = re.compile(r"(hdfs://(?:[A-Za-z0-9._-]+(?::[0-9]{1,5})?)?)(/[^?#|,]*)", re.ASCII)
_NOT_IN_PATHS = ("|", ",", "*", "?", "\n")  # delimiters of an attribute, or patterns


Put = Callable[[], bool]


class Files(Protocol):
    """A file system that region servers read."""

    def read(self, path: str) -> bytes | None:
        """The content of a file; None if it does not exist."""
        ...

    def write(self, path: str, content: bytes) -> None:
        """Make a file, and its directory; whole or not at all."""
        ...


class JarPlace:
    """A directory of jars, as tables name it."""

    def __init__(self, root: str, directory: str, files: Files, local: bool) -> None:
        self._root = root  # hdfs://NAMENODE, or file://
        self._directory = PurePosixPath(directory)
        self._files = files
        self.local = local  # True if each server has to mount the directory itself

    def url(self, name: str) -> str:
        """The URL of a jar here, as a table names it."""
        return f"{self._root}{self._directory / name}"

    def content(self, name: str) -> bytes | None:
        """The bytes of a jar that is stored here."""
        return self._files.read(str(self._directory / name))

    def put(self, name: str, content: bytes) -> bool:
        """Store a jar; False if it was stored before. Raises `ConfigError` or
        `StorageUnavailable`."""
        if self.content(name) == content:
            return False
        self._files.write(str(self._directory / name), content)
        if self.content(name) != content:
            raise StorageUnavailable(
                f"{self.url(name)} was written and reads back differently.",
                next="look at that file system, then run the command again",
            )
        return True


def parse(directory: str, webhdfs: str | None) -> JarPlace:
    """The place of `--jar-directory`. Raises `ConfigError`."""
    path = directory.removeprefix("file://")
    if found := _HDFS.fullmatch(directory):
        return JarPlace(found[1], found[2], _hdfs(found[1], webhdfs), local=False)
    if not path.startswith("/") or any(one in path for one in _NOT_IN_PATHS):
        raise ConfigError(
            f"--jar-directory is a path that begins with /, file:///PATH or hdfs://HOST:PORT/PATH, "
            f"without | , * or ?; got {directory!r}.",
            next="name a directory that every server of HBase sees",
        )
    return JarPlace("file://", os.path.normpath(path), _Local(), local=True)


def place_of(jar_url: str, webhdfs: str | None) -> tuple[JarPlace, str]:
    """The place and the name of a jar that a table names."""
    directory, _, name = jar_url.rpartition("/")
    return parse(directory or "/", webhdfs), name


def _hdfs(root: str, webhdfs: str | None) -> Files:
    if webhdfs is not None:
        return WebHDFS(webhdfs)
    command = shutil.which("hdfs")
    if command is not None:
        return _Command(command, root)
    raise ConfigError(
        "There is no command `hdfs` on the path to reach HDFS with.",
        next="give --webhdfs http://NAMENODE:9870, or run this where Hadoop is installed",
    )


class _Local:
    """Files of this machine, or of a network file system that it mounts."""

    def read(self, path: str) -> bytes | None:
        try:
            return Path(path).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise _not_possible(path, exc) from exc

    def write(self, path: str, content: bytes) -> None:
        directory, name = os.path.split(path)
        try:
            Path(directory).mkdir(exist_ok=True)  # not its parents: a typo should fail
            with tempfile.NamedTemporaryFile(
                dir=directory, prefix=f".{name}.", delete=False
            ) as new:
                try:
                    new.write(content)
                    new.flush()
                    os.fchmod(new.fileno(), 0o644)  # HBase runs as another user
                    os.fsync(new.fileno())
                    os.replace(new.name, path)
                except BaseException:
                    os.unlink(new.name)
                    raise
            sync_path(Path(directory))
        except OSError as exc:
            raise _not_possible(path, exc) from exc


class _Command:
    """HDFS through `hdfs dfs`, which knows the cluster's configuration and Kerberos."""

    def __init__(self, command: str, root: str) -> None:
        self._command = command
        self._root = root

    def read(self, path: str) -> bytes | None:
        made = self._run("-cat", self._root + path)
        if made.returncode == 0:
            return made.stdout
        if b"No such file" in made.stderr:
            return None
        raise self._failed(path, made)

    def write(self, path: str, content: bytes) -> None:
        directory = str(PurePosixPath(path).parent)
        with tempfile.NamedTemporaryFile() as source:
            source.write(content)
            source.flush()
            for arguments in (  # put copies beside the name, then renames
                ("-mkdir", "-p", self._root + directory),
                ("-put", "-f", source.name, self._root + path),
                ("-chmod", "644", self._root + path),
            ):
                made = self._run(*arguments)
                if made.returncode != 0:
                    raise self._failed(path, made)

    def _run(self, *arguments: str) -> "subprocess.CompletedProcess[bytes]":
        try:
            return subprocess.run(
                [self._command, "dfs", *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=COMMAND_S,
            )
        except (OSError, subprocess.TimeoutExpired) as exc:
            raise StorageUnavailable(
                f"`hdfs dfs {' '.join(arguments)}` failed: {exc}.", next="see whether HDFS runs"
            ) from exc

    def _failed(self, path: str, made: "subprocess.CompletedProcess[bytes]") -> TMSError:
        lines = made.stderr.decode(errors="replace").strip().splitlines()
        said = next((line for line in reversed(lines) if line.strip()), f"exit {made.returncode}")
        return StorageUnavailable(
            f"HDFS refuses {self._root}{path}: {said}",
            next="see whether HDFS runs and this user may write there",
        )


def _not_possible(path: str, exc: OSError) -> ConfigError:
    return ConfigError(
        f"{path}: {exc.strerror or exc}.",
        next="--jar-directory names a directory that exists, or whose parent does, and that this "
        "user may write to",
    )
