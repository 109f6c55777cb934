"""The command `tms`: its subcommands, its errors and its exit codes.

* An error is three lines on standard error (what, where, what to do next), never a traceback. With
  `--json` standard output still is valid JSON: it holds the error when nothing else was printed.
* Exit codes: see `EXIT_CODES` and docs/cli.md.
* A reader that goes away (`tms consume … | head`) is no error.
"""

import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, NoReturn

import click

from tms.cli.output import json_text, say, write
from tms.cli.session import Session, Shared
from tms.errors import ConfigError, ErrorKind, TMSError
from tms.runtime.extras import needed

EXIT_CODES = {
    ErrorKind.MALFORMED: 2,
    ErrorKind.INVALID: 2,
    ErrorKind.NOT_FOUND: 3,
    ErrorKind.GONE: 3,
    ErrorKind.CONFLICT: 4,
    ErrorKind.UNAUTHENTICATED: 5,
    ErrorKind.FORBIDDEN: 5,
    ErrorKind.UNAVAILABLE: 6,
    ErrorKind.OVERLOADED: 6,
    ErrorKind.STORAGE_FULL: 6,
    ErrorKind.SLOW: 6,
    ErrorKind.TIMED_OUT: 6,
    ErrorKind.ALREADY_RUNNING: 75,
    ErrorKind.CONFIG: 78,
}
FAILED, INTERRUPTED = 1, 130

# The next step, by error code. Other errors name it in their own sentence.
_NEXT = {
    "topic-not-found": "`tms topic list` shows the topics, `tms topic create` makes one",
    "queue-not-found": "`tms queue list TOPIC` shows the queues, `tms queue create` makes one",
    "group-not-found": "`tms group list` shows the groups of a topic",
    "transaction-not-found": "`tms tx list` shows those in progress",
    "topic-exists": "`tms topic describe` shows its settings, `tms topic update` changes them",
    "unauthenticated": "put the token into a file and name it with --token-file or TMS_TOKEN_FILE, "
    "or keep it: tms ctx save",
    "forbidden": "`tms access whoami` shows your grants; an administrator adds one",
    "unavailable": "`tms doctor` finds out why; `tms serve` starts a service",
    "already-running": "stop the other process, or talk to its service with --url",
    "data-corrupt": "`tms fsck --data DIR` names what is damaged and repairs it with --repair",
    "storage-full": "free space on the disk; the service continues by itself",
    "timed-out": "try again, or give it more time; `tms doctor` measures the service",
    "offset-out-of-range": "`tms topic describe` shows the readable offsets",
    "config": "docs/operations.md lists every setting; `tms doctor` checks the file",
}

# name → (module, help). The module is imported when the command is called; it has a `command`, or
# what is named behind the colon.
_COMMANDS = {
    "serve": ("tms.cli.serve", "Run the service."),
    "topic": ("tms.cli.topics", "Create, describe, list, update, truncate and delete topics."),
    "publish": ("tms.cli.publish", "Publish lines of standard input or files."),
    "consume": ("tms.cli.consume", "Print messages."),
    "export": ("tms.cli.exporting", "Write the messages of a topic to a file."),
    "import": ("tms.cli.importing", "Publish the messages of files, each file once."),
    "delayed": ("tms.cli.delayed", "List, count and cancel messages that are not due yet."),
    "tx": ("tms.cli.transactions", "List, show, abort and invalidate transactions."),
    "queue": ("tms.cli.queues", "Make queues, work on them, see their dead letters."),
    "group": ("tms.cli.group", "List, show and reset groups of consumers, with their lag."),
    "top": ("tms.cli.top", "Show rates, lag, queues and instances, live."),
    "console": ("tms.cli.console", "Open the console of the service in a browser."),
    "cluster": ("tms.cli.cluster", "Show the instances of a cluster, and move partitions."),
    "log": ("tms.cli.log", "Show and set the log level of a running service."),
    "ctx": ("tms.cli.ctx", "Save services under names, and select the one to talk to."),
    "token": ("tms.cli.access:token", "Create, list and revoke the tokens of programs."),
    "grant": ("tms.cli.access:grant", "Add, list and remove permissions of principals."),
    "quota": ("tms.cli.access:quota", "Bound the rates of principals."),
    "access": ("tms.cli.access:access", "Show your identity, and why a request is allowed."),
    "position": ("tms.cli.transactions:position", "Show and set single positions of groups."),
    "inspect": ("tms.cli.inspect", "Show stored segments, blocks, ids and flags."),
    "fsck": ("tms.cli.fsck", "Verify a data directory, and repair it with --repair."),
    "backup": ("tms.cli.backup", "Back up everything as it is at one moment."),
    "restore": ("tms.cli.backup:restore", "Make a data directory of a backup."),
    "upgrade": ("tms.cli.upgrade", "Move a data directory from LevelDB to RocksDB."),
    "hbase": ("tms.cli.hbase", "Put TMS into an HBase, look after it, take it out."),
    "spark": ("tms.cli.spark", "Archive, report on, audit and query topics with Spark."),
    "bench": ("tms.cli.bench", "Measure publish, replay and latency."),
    "doctor": ("tms.cli.doctor", "Check this machine, its setup and the service."),
}


# The extra with the libraries that a command needs beyond a client's.
_EXTRAS = {"serve": "server", "hbase": "hbase", "spark": "spark"}


class _Commands(Shared, click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, _, name = _COMMANDS[cmd_name][0].partition(":")
        try:
            with needed(f"`tms {cmd_name}`", _EXTRAS.get(cmd_name, "server")):
                command: click.Command = getattr(import_module(module), name or "command")
        except ConfigError:
            if ctx.resilient_parsing:  # a shell completes what can be called
                return None
            raise
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])


def _print_version(ctx: click.Context, param: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        from tms.runtime.version import VERSION

        click.echo(f"tms {VERSION}")
        ctx.exit()


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version.",
)
def cli() -> None:
    """TMS: an ordered, immutable, transactional message log.

    Talks to the service at --url or of --context, or opens the data directory --data in this
    process. Shell completion: eval "$(_TMS_COMPLETE=bash_source tms)", or zsh_source, or
    fish_source.
    """


def main() -> NoReturn:
    """Run `tms` with the arguments of this process, and exit."""
    if instruction := os.environ.get("_TMS_COMPLETE"):
        from click.shell_completion import shell_complete

        sys.exit(shell_complete(cli, {"obj": Session()}, "tms", "_TMS_COMPLETE", instruction))
    code = run(sys.argv[1:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # nothing is left to interrupt
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _forget_stdout()
    sys.exit(code)


@dataclass(frozen=True, slots=True)
class _Failure:
    """An error in the three parts that people read: what, where, what to do next."""

    exit_code: int
    code: str
    what: str
    where: str | None = None
    next: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


def run(arguments: list[str]) -> int:
    """Run `tms` with these arguments; the exit code. Never raises for what the world does."""
    session = Session()
    try:
        with cli.make_context("tms", arguments, obj=session) as context:
            result: Any = cli.invoke(context)
            return result if isinstance(result, int) else 0
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except (KeyboardInterrupt, click.Abort):
        say("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        _forget_stdout()
        return 0
    except Exception as error:
        failure = _failure(session, error)
        if failure is None:
            raise
        _tell(session, arguments, failure)
        return failure.exit_code


def _failure(session: Session, error: Exception) -> _Failure | None:
    """The message about an error; None if the user asked for its traceback."""
    if isinstance(error, click.ClickException):
        context = error.ctx if isinstance(error, click.UsageError) else None
        path = context.command_path if context is not None else "tms"
        help_ = f"`{path} --help`"
        return _Failure(error.exit_code, "usage", error.format_message(), path, help_)
    if isinstance(error, TMSError):
        details = dict(error.details)
        next_step = details.pop("next", None) or _NEXT.get(error.code)
        where = None if error.kind is ErrorKind.CONFIG else session.where()
        exit_code = EXIT_CODES.get(error.kind, FAILED)
        return _Failure(exit_code, error.code, error.message, where, next_step, details)
    if isinstance(error, OSError):
        where = error.filename if isinstance(error.filename, str) else None
        return _Failure(FAILED, "os-error", f"{error.strerror or error}.", where)
    if os.environ.get("TMS_TRACEBACK"):
        return None
    what = f"This is a defect of TMS: {type(error).__name__}: {error}"
    next_step = "report it, with the output of the same command under TMS_TRACEBACK=1"
    return _Failure(FAILED, "internal", what, session.where(), next_step)


def _tell(session: Session, arguments: list[str], failure: _Failure) -> None:
    say(f"error: {failure.what}")
    if failure.where:
        say(f"  where: {failure.where}")
    if request_id := failure.details.get("request_id"):
        say(f"  request: {request_id}")
    if failure.next:
        say(f"  next:  {failure.next}")
    if session.wants_json(arguments) and not session.printed_document:
        document = {
            "code": failure.code,
            "message": failure.what,
            "where": failure.where,
            "next": failure.next,
            "exit_code": failure.exit_code,
            "details": failure.details,
        }
        try:
            write(json_text({"error": document}) + "\n")
        except BrokenPipeError:
            _forget_stdout()


def _forget_stdout() -> None:
    """The reader of standard output is gone: write nothing more to it, not even at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
