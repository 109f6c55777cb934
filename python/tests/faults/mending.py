"""`tms fsck` in this process, as an operator runs it on the directory of a stopped service."""

from pathlib import Path

from tests.cli_kit import tms_command


def fsck(data: Path, *options: str) -> tuple[int, str]:
    """The exit code and the output of `tms fsck`."""
    ended = tms_command("fsck", "--data", data, *options)
    return ended.returncode, ended.stdout + ended.stderr
