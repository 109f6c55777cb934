"""`tms top`: what a service does, live in a terminal; once where there is none.

    a thread looks, again and again ─▶ the newest look ─▶ drawn at once, and at each key

Invariants

* Keys are answered while a look is under way, and while the service is away.
* However it ends, the terminal is as it was.
"""

import contextlib
import os
import queue
import select
import shutil
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, TypeVar

import click

from tms.cli.output import Format, escape, write
from tms.cli.parameters import SECONDS, NamespaceOption, session_command
from tms.cli.session import Session
from tms.cli.top_view import SORTS, Look, document, lines
from tms.errors import Forbidden, TMSError

if TYPE_CHECKING:
    import tms

T = TypeVar("T")
INTERVAL_S = 2.0
_KEY_S = 0.2  # how soon a new look is drawn
_PATIENCE_S = 3.0  # before it says that nobody answers
_WIDTH, _HEIGHT = 10_000, 100_000  # where there is no terminal
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"  # another screen, no cursor
_HOME, _REST_OF_LINE, _REST = "\x1b[H", "\x1b[K", "\x1b[J"
_QUIT, _SORT = "qQ\x1b\x04", "sS"


@session_command("top")
def command(
    session: Session,
    namespace: NamespaceOption = "default",
    interval: Annotated[float, SECONDS, "Between two looks. [2s]"] = INTERVAL_S,
    sort: Annotated[str, click.Choice(SORTS), "[most]"] = SORTS[0],
    once: Annotated[bool, "Look twice, print, and end."] = False,
) -> None:
    """Show what goes in and out, lag by group, queues, transactions and instances, live.

    \b
      q  quit     s  what has most first, or by name
    """
    live = not once and session.format is Format.TABLE and sys.stdout.isatty()
    with session.bus() as bus:
        if live and sys.stdin.isatty():
            _live(session, lambda: _look(session, bus, namespace), interval, sort)
        else:
            _once(session, lambda: _look(session, bus, namespace), interval, sort)


def _look(session: Session, bus: "tms.Bus", namespace: str) -> Look:
    """Ask for the present state. Raises the error that keeps everything from being seen."""
    clock = session.clock
    refused: list[Forbidden] = []

    def seen(ask: Callable[[], T]) -> T | None:
        try:
            return ask()
        except Forbidden as error:
            refused.append(error)
            return None

    look = Look(
        clock.now_ms(),
        clock.monotonic_s(),
        seen(bus.list_instances),
        seen(lambda: list(bus.list_topic_sizes(namespace))),
        seen(lambda: list(bus.list_groups(namespace=namespace))),
        seen(lambda: list(bus.list_queues(namespace))),
    )
    if len(refused) == 4:
        raise refused[-1]
    return look


def _once(session: Session, look: Callable[[], Look], interval_s: float, sort: str) -> None:
    before = look()
    threading.Event().wait(interval_s)
    shown = document(look(), before)
    if session.format is Format.TABLE:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _WIDTH
        text = lines(shown, f"TMS at {escape(session.where())}", sort, width, _HEIGHT)
        write("\n".join(text) + "\n")
    else:
        session.show(shown, shown["groups"] or [])


def _live(session: Session, look: Callable[[], Look], interval_s: float, sort: str) -> None:
    looks: queue.SimpleQueue[Look | TMSError] = queue.SimpleQueue()
    ended = threading.Event()

    def keep_looking() -> None:
        while not ended.is_set():
            try:
                looks.put(look())
            except TMSError as error:
                looks.put(error)
            ended.wait(interval_s)

    threading.Thread(target=keep_looking, name="tms-top", daemon=True).start()
    before: Look | None = None
    newest: Look | TMSError | None = None
    shown = None
    try:
        with _screen():
            while True:
                with contextlib.suppress(queue.Empty):
                    newest = looks.get_nowait()
                    if isinstance(newest, Look):
                        shown, before = document(newest, before), newest
                size = shutil.get_terminal_size()
                text = [_title(session, newest, interval_s, sort)]
                if shown is not None:
                    text = lines(shown, text[0], sort, size.columns, size.lines)
                _draw([line[: size.columns] for line in text])
                key = _key(_KEY_S)
                if key is not None and key in _QUIT:
                    return
                if key is not None and key in _SORT:
                    sort = SORTS[1 - SORTS.index(sort)]
    finally:
        ended.set()


def _title(session: Session, newest: Look | TMSError | None, interval_s: float, sort: str) -> str:
    where = escape(session.where())
    if newest is None:
        return f"TMS at {where}: looking …   q quit"
    if isinstance(newest, TMSError):
        return f"TMS at {where} does not answer: {escape(newest.message)}   q quit"
    silent_s = session.clock.monotonic_s() - newest.at_s
    if silent_s > interval_s + _PATIENCE_S:
        return f"TMS at {where} has not answered for {silent_s:.0f} s   q quit"
    return f"TMS at {where}   q quit   s sort ({sort})"


def _draw(text: list[str]) -> None:
    write(_HOME + f"{_REST_OF_LINE}\r\n".join(text) + _REST_OF_LINE + _REST)


def _key(timeout_s: float) -> str | None:
    """The next key that is pressed; None: none was in this time."""
    ready, _, _ = select.select([sys.stdin], [], [], timeout_s)
    if not ready:
        return None
    return os.read(sys.stdin.fileno(), 1).decode("latin-1") or "\x04"


@contextlib.contextmanager
def _screen() -> Iterator[None]:
    """The terminal shows another screen, and gives keys at once."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        write(_ENTER)
        yield
    finally:
        write(_LEAVE)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
