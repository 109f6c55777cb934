"""Checks of the configuration: the file and the environment, read exactly as the service reads
them."""

import errno
import socket
from collections.abc import Iterator
from pathlib import Path

from tms.cli.checks.finding import Finding, ok, problem, warning
from tms.cli.checks.machine import Machine
from tms.cli.checks.probe import Who, ask
from tms.errors import ConfigError
from tms.serve.config import Settings
from tms.serve.config_sources import load

_TIMEOUT_S = 3.0


def check(file: Path | None, machine: Machine) -> Iterator[Finding]:
    """All checks of the configuration in `file`, or of the defaults."""
    if file is not None and file.exists() and file.stat().st_mode & 0o022:
        found = f"others may write to {file}"
        yield warning("rights of the configuration", found, f"chmod go-w {file}")
    try:
        # Where the data is comes from --data as often as from a file: here it is no fault.
        settings = load(file, {} if file is not None and _says_data(file) else {"data": "."})
    except ConfigError as error:
        head, *faults = error.message.split("\n  ")
        for fault in faults or [head]:
            yield problem("configuration", fault, "correct it; docs/operations.md lists every key")
        return
    yield ok("configuration", "the defaults" if file is None else f"{file} is fine")
    yield _port(settings)


def _says_data(file: Path) -> bool:
    try:
        return any(line.lstrip().startswith("data") for line in file.read_text().splitlines())
    except (OSError, UnicodeDecodeError):
        return False


def _port(settings: Settings) -> Finding:
    """Checks that the service could listen at its address."""
    host, port = settings.server.host, settings.server.port
    place = f"{host}:{port}"
    try:
        with socket.create_server((host, port), reuse_port=False):
            return ok("port", f"{place} is free")
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            found = ask(f"http://{place}", "/", _TIMEOUT_S)
            if found.who is Who.TMS:
                return ok("port", f"TMS itself listens at {place}")
            return problem(
                "port", f"{place} is in use. {found.found}", "stop that, or choose another --port"
            )
        if error.errno == errno.EACCES:
            return problem("port", f"{place} needs rights", "choose a --port from 1024 on")
        return problem("port", f"{place}: {error}", "choose a --host of this machine")
