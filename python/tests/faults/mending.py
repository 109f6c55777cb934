"""`tms fsck` in this process, as an operator would run it on a stopped service's directory."""

from pathlib import Path

from tests.cli_kit import tms_command


def fsck(data: Path, *options: str) -> tuple[int, str]:
    """Exit code, and all that it printed."""
    ended = tms_command("fsck", "--data", data, *options)
    return ended.returncode, ended.stdout + ended.stderr
