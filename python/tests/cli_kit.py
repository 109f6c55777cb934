"""`tms` in this process, for tests that give many commands: the start of an interpreter for each
would take longer than the command."""

import contextlib
import io
import os
from collections.abc import Mapping
from typing import NamedTuple

import pytest

from tms.cli.main import run


class Ended(NamedTuple):
    """The exit code of a command, and its output."""

    returncode: int
    stdout: str
    stderr: str


def tms_command(*words: object, env: Mapping[str, str] | None = None) -> Ended:
    """Run `tms WORDS` to its end, with these variables in place of all others of TMS."""
    printed, said = (io.TextIOWrapper(io.BytesIO(), write_through=True) for _ in range(2))
    with (
        pytest.MonkeyPatch.context() as patched,
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(said),
    ):
        for name in [name for name in os.environ if name.startswith("TMS_")]:
            patched.delenv(name)
        for name, value in (env or {}).items():
            patched.setenv(name, value)
        code = run([*map(str, words)])
    return Ended(code, _all(printed), _all(said))


def _all(stream: io.TextIOWrapper) -> str:
    stream.seek(0)
    return stream.read()
