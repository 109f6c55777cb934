"""How a connection gets on, and when its other side has kept the service waiting for too long.

    IDLE ──first byte──▶ HEAD ──headers──▶ BODY ──body──▶ IDLE …     (answers may be owed meanwhile)
                           └──── refused or last answer ────▶ LINGER

* A pure state machine: it is told what happens and when, and asked now and then for its verdict,
  every `TICK_S`; time-outs come a tick early rather than late.
* While memory for answers is short, who does not read is given up sooner: others need it.
* Time in which the service itself keeps the other side waiting does not count.
"""

from enum import Enum, auto

from tms.server.http.watchdog import TICK_S, ConnectionLimits

LINGER_S = 2.0
STALLED_S = 1.5  # without progress, while memory for answers is short


class Phase(Enum):
    """What is expected from the other side."""

    IDLE = auto()  # a request, if it likes
    HEAD = auto()  # the rest of the headers
    BODY = auto()  # the rest of the body
    LINGER = auto()  # that it reads the last answer and closes


class ConnectionVerdict(Enum):
    """What is to be done."""

    GO_ON = auto()
    CLOSE = auto()  # nothing is owed
    CUT_OFF = auto()  # it does not read
    HEAD_TOO_SLOW = auto()
    BODY_TOO_SLOW = auto()


class ConnectionProgress:
    """The clock of one connection. Times are seconds of the event loop."""

    __slots__ = (
        "_body_at",
        "_body_bytes",
        "_flushed",
        "_flushed_at",
        "_limits",
        "_served",
        "_since",
        "bytes_written",
        "phase",
    )

    def __init__(self, limits: ConnectionLimits, now: float) -> None:
        self.phase = Phase.IDLE
        self._limits = limits
        self._since = now  # when the phase, or the body's window, began
        self._body_at = now
        self._body_bytes = 0  # since `_since`
        self.bytes_written = 0  # handed to the transport
        self._flushed = 0
        self._flushed_at = now
        self._served = False

    def enter(self, phase: Phase, now: float) -> None:
        """The next phase begins."""
        self.phase = phase
        self._since = self._body_at = now
        self._body_bytes = 0

    def received(self, size: int, now: float) -> None:
        """A piece of a body came."""
        self._body_bytes += size
        self._body_at = now

    def answered(self, now: float) -> None:
        """An answer is complete."""
        self._served = True
        if self.phase is Phase.IDLE:
            self._since = now

    def verdict(
        self, now: float, unsent: int, busy: bool, held_up: bool, short: bool = False
    ) -> ConnectionVerdict:
        """What to do when the transport holds `unsent` bytes, an answer is being made (`busy`), the
        service does not read at the moment (`held_up`), or memory is `short`."""
        if unsent:
            return self._of_writing(now, unsent, short)
        self._flushed_at = now
        if self.phase is Phase.LINGER:
            return (
                ConnectionVerdict.CUT_OFF
                if now - self._since > LINGER_S
                else ConnectionVerdict.GO_ON
            )
        if held_up:
            self._since = self._body_at = now
            return ConnectionVerdict.GO_ON
        if self.phase is Phase.HEAD:
            late = now - self._since > self._limits.head_timeout_s - TICK_S
            return ConnectionVerdict.HEAD_TOO_SLOW if late else ConnectionVerdict.GO_ON
        if self.phase is Phase.BODY:
            return self._of_body(now)
        return (
            ConnectionVerdict.CLOSE
            if not busy and now - self._since > self._idle_s()
            else ConnectionVerdict.GO_ON
        )

    def _of_writing(self, now: float, unsent: int, short: bool) -> ConnectionVerdict:
        if self.bytes_written - unsent != self._flushed:
            self._flushed, self._flushed_at = self.bytes_written - unsent, now
        limit_s = self._limits.write_timeout_s
        if short:
            limit_s = min(limit_s, STALLED_S)
        late = now - self._flushed_at > limit_s - TICK_S
        return ConnectionVerdict.CUT_OFF if late else ConnectionVerdict.GO_ON

    def _of_body(self, now: float) -> ConnectionVerdict:
        window = self._limits.body_timeout_s - TICK_S
        if now - self._body_at > window:
            return ConnectionVerdict.BODY_TOO_SLOW
        if now - self._since > window:
            if self._body_bytes < self._limits.body_bytes_per_s_min * window:
                return ConnectionVerdict.BODY_TOO_SLOW
            self._since, self._body_bytes = now, 0
        return ConnectionVerdict.GO_ON

    def _idle_s(self) -> float:
        """A connection that never asked for anything is not kept alive."""
        limits = self._limits
        return limits.keep_alive_s if self._served else limits.head_timeout_s - TICK_S
