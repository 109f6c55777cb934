"""Only a command that begins a log makes a data directory."""

import os
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tests.cli.test_cli import Run, data, run  # noqa: F401
from tms.cli.main import cli

MAKE = {"serve", "bench", "topic create", "restore"}
WITHOUT = ("cluster", "ctx", "hbase", "spark")  # they have no data directory

# Arguments of the other commands, besides --data.
ARGUMENTS = {
    "topic delete": "t --yes",
    "topic describe": "t",
    "topic erase": "t --key k --yes",
    "topic list": "",
    "topic producers": "t",
    "topic truncate": "t --yes",
    "topic update": "t --retention 1d",
    "publish": "t",
    "consume": "t",
    "export": "t",
    "import": "t",
    "delayed cancel": "t 1767225600000-1",
    "delayed count": "t",
    "delayed list": "t",
    "tx abort": "1",
    "tx invalidate": "1",
    "tx list": "",
    "tx prune": "--yes",
    "tx show": "1",
    "queue ack": "g t 0-0-1-1",
    "queue create": "g t",
    "queue dead": "g t",
    "queue discard": "g t --yes",
    "queue delete": "g t --yes",
    "queue extend": "g t 0-0-1-1",
    "queue list": "t",
    "queue nack": "g t 0-0-1-1",
    "queue peek": "g t",
    "queue receive": "g t",
    "queue redrive": "g t",
    "queue reject": "g t 0-0-1-1",
    "queue release": "g t 0-0-1-1",
    "queue show": "g t",
    "queue update": "g t --lease 60",
    "group dead": "g t",
    "group list": "t",
    "group reset": "g t --to earliest --yes",
    "group show": "g t",
    "top": "--once",
    "position forget": "g t --partition 0 --yes",
    "position set": "g t earliest --partition 0 --yes",
    "position show": "g t",
    "inspect": "t",
    "fsck": "",
    "backup": "--to copy",
    "upgrade": "--yes",
    "token create": "ann",
    "token list": "",
    "token revoke": "000000000000",
    "token sessions": "",
    "grant add": "ann publish topic:t",
    "grant list": "",
    "grant remove": "ann publish topic:t",
    "quota set": "ann --requests 1",
    "quota list": "",
    "quota remove": "ann",
    "log level": "",
    "access whoami": "",
    "access explain": "ann publish topic:t",
    "console": "--print",
    "doctor": "",
}


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[str]:
    """All commands that have no subcommands."""
    if not isinstance(command, click.Group):
        yield " ".join(path)
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        one = command.get_command(context, name)
        assert one is not None
        yield from commands(one, (*path, name))


def test_every_command_is_tried_here() -> None:
    known = {name for name in commands(cli) if name.partition(" ")[0] not in WITHOUT}
    assert known == MAKE | ARGUMENTS.keys()


@pytest.mark.parametrize("there", ["nothing", "an empty directory", "something else"])
@pytest.mark.parametrize("command", ARGUMENTS)
def test_a_command_on_a_directory_that_is_no_log_says_so_and_makes_nothing(
    command: str,
    there: str,
    run: Run,  # noqa: F811
    tmp_path: Path,
) -> None:
    place = tmp_path / "typo"
    if there != "nothing":
        place.mkdir()
    if there == "something else":
        (place / "letter.txt").write_text("dear")
    before = sorted(tmp_path.rglob("*"))
    ended = run(*command.split(), *ARGUMENTS[command].split(), "--data", str(place), TMS_DATA="")
    assert sorted(tmp_path.rglob("*")) == before
    if command != "doctor":
        assert ended.code in (3, 78), ended.err
        assert "data directory" in ended.err, ended.err


def test_what_begins_a_log_makes_its_directory(run: Run, tmp_path: Path) -> None:  # noqa: F811
    place = tmp_path / "new"
    assert run("topic", "create", "t", "--data", str(place), TMS_DATA="").code == 0
    assert run("topic", "list", "--data", str(place), TMS_DATA="").code == 0
    assert os.listdir(place)
