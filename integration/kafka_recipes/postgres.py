"""A PostgreSQL server with logical replication, on a directory of its own.

    with Postgres() as postgres:
        postgres.port

It trusts every client on this machine. PostgreSQL refuses to run as root: for root it runs as the
user `postgres`, whom Debian's package creates.
"""

import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Self

from integration.cluster.process import Process
from integration.cluster.runtime import Unavailable, succeed
from integration.cluster.site import LOCAL, free_ports

USER = "postgres"
START_S = 60
_DEBIAN = Path("/usr/lib/postgresql")
_OPTIONS = ("wal_level=logical", "fsync=off", f"listen_addresses={LOCAL}", "max_connections=20")


class Postgres:
    """One server; its files are removed with it."""

    def __init__(self) -> None:
        (self.port,) = free_ports(1)
        self._directory = Path(tempfile.mkdtemp(prefix="tms-postgres-"))
        self._server = Process("postgres", self._command(), self._directory / "postgres.log")

    def __enter__(self) -> Self:
        data = str(self._directory / "data")
        if os.getuid() == 0:
            shutil.chown(self._directory, USER, USER)
        initdb = ("initdb", "-D", data, "-U", USER, "-A", "trust", "-E", "UTF8", "--no-sync")
        succeed(_as_user(*initdb), START_S, "PostgreSQL's directory could not be made")
        self._server.start()
        try:
            self._server.wait_until(self._answers, START_S, "it answers")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._server.kill()
        shutil.rmtree(self._directory)

    def _command(self) -> list[str]:
        options = [f"unix_socket_directories={self._directory}", *_OPTIONS]
        chosen = [word for option in options for word in ("-c", option)]
        data = str(self._directory / "data")
        return _as_user("postgres", "-D", data, "-p", str(self.port), *chosen)

    def _answers(self) -> bool:
        ready = [str(_program("pg_isready")), "-q", "-h", LOCAL, "-p", str(self.port)]
        return subprocess.run(ready, timeout=START_S, check=False).returncode == 0


def _as_user(program: str, *arguments: str) -> list[str]:
    command = [str(_program(program)), *arguments]
    if os.getuid() != 0:
        return command
    user = pwd.getpwnam(USER)
    ids = (f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups")
    return ["setpriv", *ids, "--pdeathsig=KILL", *command]


def _program(name: str) -> Path:
    """A program of the newest PostgreSQL; Debian keeps them out of PATH."""
    found = sorted(_DEBIAN.glob(f"*/bin/{name}"), key=lambda path: int(path.parts[-3]))
    on_path = shutil.which(name)
    if not found and on_path is None:
        raise Unavailable(
            f"PostgreSQL is needed and there is no {name}; install it (on Debian: apt-get install "
            "postgresql) and try again, or let `make test-kafka` install it as root"
        )
    return found[-1] if found else Path(str(on_path))
