"""`tms fsck` in this process, as an operator would run it on a stopped service's directory."""

import contextlib
import io
from pathlib import Path

from tms.cli.main import run


def fsck(data: Path, *options: str) -> tuple[int, str]:
    """Exit code, and all that it printed."""
    printed = io.BytesIO()
    text = io.TextIOWrapper(printed, write_through=True)
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        code = run(["fsck", "--data", str(data), *options])
    return code, printed.getvalue().decode()
