"""`tms top`: its table of two looks, printed once without a terminal, and live in one."""

import codecs
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tms
from tests.cli.test_cli_transactions import Tms, bus, cli
from tms.cli.main import run
from tms.cli.top_view import SORTS, Look, document, lines
from tms.model.group import GroupSummary
from tms.model.lag import InstanceLoad, TopicSize
from tms.model.queue import QueueSummary

__all__ = ["bus", "cli"]
MAIN = "from tms.cli.main import main; main()"
WIDTH, HEIGHT = 80, 24


def look(at_s: float, published: int, lag: int | None, uptime_ms: int, **more: Any) -> Look:
    load = InstanceLoad("a", "http://a", True, True, uptime_ms, published, 10 * published)
    return Look(
        round(at_s * 1_000),
        at_s,
        more.get("instances", [load]),
        [TopicSize("t", 1, published, published, 2_048)],
        [GroupSummary("g", "t", 1, lag, None if lag is None else 7_300_000)],
        more.get("queues", [QueueSummary("w", "t", 5, 2, 1, 61_000)]),
    )


def test_rates_are_of_what_came_between_two_looks() -> None:
    shown = document(look(12, 200, 30, 9_000), look(10, 100, 50, 7_000))
    assert shown["instances"][0]["in_s"] == shown["topics"][0]["in_s"] == 50
    assert shown["instances"][0]["in_bytes_s"] == 500
    assert shown["groups"][0]["lag_change_s"] == -10


@pytest.mark.parametrize(
    "before",
    [
        None,
        look(12, 100, None, 8_000),  # no time has passed
        look(10, 300, None, 90_000),  # an instance that was started anew, a topic made anew
    ],
)
def test_a_rate_that_nobody_can_tell_is_none(before: Look | None) -> None:
    shown = document(look(12, 200, 30, 9_000), before)
    assert shown["instances"][0]["in_s"] is None and shown["topics"][0]["in_s"] is None
    assert shown["groups"][0]["lag_change_s"] is None


def test_every_table_fits_into_the_terminal() -> None:
    groups = [GroupSummary(f"group-{n}", "t" * 90, n, n, n) for n in range(200)]
    now = look(1, 1, 1, 1)
    now = Look(now.at_ms, now.at_s, now.instances, now.topics, groups, now.queues)
    for width, height in ((40, 24), (80, 24), (120, 60)):
        text = lines(document(now, None), "title", SORTS[0], width, height)
        assert len(text) <= height and max(map(len, text)) <= width
        shown = [line.split()[0] for line in text if line.startswith("group-")]
        assert shown[:3] == ["group-199", "group-198", "group-197"]
        assert any(line.startswith("w ") for line in text), "the last table has its place"
    text = lines(document(now, None), "title", SORTS[1], 80, 24)
    assert next(line for line in text if line.startswith("group-")).startswith("group-0 ")


def test_what_may_not_be_seen_and_who_is_away_is_said() -> None:
    away = InstanceLoad("b", "http://b", answers=False)
    text = lines(document(look(1, 1, None, 1, instances=[away]), None), "", "most", 80, 24)
    assert any(line.startswith("b ") and "away" in line for line in text)
    text = lines(document(look(1, 1, 1, 1, instances=None, queues=None), None), "", "most", 80, 24)
    assert "You may not see instances." in text and "You may not see transactions." in text
    assert "You may not see queues." in text


def test_names_cannot_steer_the_terminal() -> None:
    evil = QueueSummary("\x1b[2Jw", "t", 1, 1, 1, 1)
    text = lines(document(look(1, 1, 1, 1, queues=[evil]), None), "", "most", 80, 24)
    assert "\x1b" not in "".join(text) and any("\\x1b" in line for line in text)


def test_without_a_terminal_it_prints_once(bus: tms.Bus, cli: Tms) -> None:
    bus.publish_many("in", [b"x"] * 3)
    bus.set_positions("in", {0: "earliest", 1: "earliest"}, group="g")
    bus.queue("in", group="w").receive(1)
    code, shown = cli("top", "--interval", "10ms")
    assert code == 0
    assert [one["answers"] for one in shown["instances"]] == [True]
    assert shown["topics"][0]["messages"] == 3 and shown["topics"][0]["in_s"] == 0
    assert [(one["group"], one["lag"]) for one in shown["groups"]] == [("g", 3)]
    assert [(one["group"], one["waiting"]) for one in shown["queues"]] == [("w", 2)] or (
        shown["queues"][0]["waiting"] + shown["queues"][0]["leased"] == 3
    )


def test_in_a_pipe_nothing_is_cut_off(
    bus: tms.Bus, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    name = "g" * 200
    bus.set_positions("in", {0: "latest"}, group=name)
    url = bus._transport.addresses.now.url  # type: ignore[union-attr]
    assert run(["top", "--url", url, "--interval", "0s"]) == 0
    assert f"{name}  in " in capsysbinary.readouterr().out.decode()


class Terminal:
    """`tms top` in a terminal of 80 × 24."""

    def __init__(self, url: str, *arguments: str) -> None:
        self.master, terminal = pty.openpty()
        size = struct.pack("HHHH", HEIGHT, WIDTH, 0, 0)
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, size)
        self.before = termios.tcgetattr(terminal)
        self.terminal = terminal
        self.process = subprocess.Popen(
            [sys.executable, "-c", MAIN, "top", "--url", url, *arguments],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
        )
        self.seen = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")()  # a character may come in two parts

    def until(self, found: Callable[[str], bool], timeout_s: float = 60) -> str:
        """The output since the last call, once it has this."""
        text, deadline_s = "", time.monotonic() + timeout_s
        while not found(text):
            ready, _, _ = select.select([self.master], [], [], deadline_s - time.monotonic())
            assert ready, f"it was not shown: {text[-2_000:]!r}"
            text += self._decoder.decode(os.read(self.master, 1 << 16))
        self.seen += text
        return text

    def press(self, key: str) -> None:
        os.write(self.master, key.encode())

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for descriptor in (self.master, self.terminal):
            os.close(descriptor)


@pytest.fixture
def terminal(bus: tms.Bus) -> Iterator[Terminal]:
    bus.publish_many("in", [b"x"] * 3)
    bus.set_positions("in", {0: "earliest", 1: "earliest"}, group="zebra")
    bus.set_positions("in", {0: "latest", 1: "latest"}, group="ant")
    url = bus._transport.addresses.now.url  # type: ignore[union-attr]
    shown = Terminal(url, "--interval", "50ms")
    try:
        yield shown
    finally:
        shown.end()


def _is_before(first: str, second: str) -> Callable[[str], bool]:
    """True if the last whole screen has one name before the other."""

    def found(text: str) -> bool:
        screen = text.rpartition("\x1b[J")[0].rpartition("\x1b[H")[2]
        return -1 < screen.find(first) < screen.find(second)

    return found


def test_in_a_terminal_it_is_live_and_takes_keys(bus: tms.Bus, terminal: Terminal) -> None:
    terminal.until(_is_before("zebra", "ant"))
    assert "\x1b[?1049h" in terminal.seen
    terminal.press("s")
    terminal.until(_is_before("ant", "zebra"))
    bus.publish_many("in", [b"x"] * 4_321)
    terminal.until(lambda text: "4,324" in text)
    terminal.press("q")
    terminal.until(lambda text: "\x1b[?1049l" in text)
    assert terminal.process.wait(60) == 0
    assert termios.tcgetattr(terminal.terminal) == terminal.before


def test_an_interrupted_one_leaves_the_terminal_as_it_was(terminal: Terminal) -> None:
    terminal.until(_is_before("zebra", "ant"))
    terminal.process.send_signal(signal.SIGINT)
    terminal.until(lambda text: "\x1b[?1049l" in text)
    assert terminal.process.wait(60) == 130
    assert termios.tcgetattr(terminal.terminal) == terminal.before
