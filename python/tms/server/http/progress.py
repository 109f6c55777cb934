"""The progress of a connection, and the verdict when its client keeps the service waiting too long.

    IDLE ──first byte──▶ HEAD ──headers──▶ BODY ──body──▶ IDLE …     (answers may be owed meanwhile)
                           └──── refused or last answer ────▶ LINGER

* A pure state machine. The connection writes what happens into its fields and never looks at a
  clock: time is that of the watchdog's looks, every `TICK_S`, which ask for the verdict.
* While memory for answers is short, clients that do not read are cut off sooner: others need it.
* Time in which the service itself keeps the other side waiting does not count.
"""

from dataclasses import dataclass
from enum import Enum, auto

from tms.server.http.watchdog import TICK_S, ConnectionLimits

LINGER_S = 2.0
STALLED_S = 1.5  # without progress, while memory for answers is short


class Phase(Enum):
    """The service's expectation of the client."""

    IDLE = auto()  # a request, if it likes
    HEAD = auto()  # the rest of the headers
    BODY = auto()  # the rest of the body
    LINGER = auto()  # that it reads the last answer and closes


class ConnectionVerdict(Enum):
    """The next step of a connection."""

    GO_ON = auto()
    CLOSE = auto()  # nothing is owed
    CUT_OFF = auto()  # it does not read
    HEAD_TOO_SLOW = auto()
    BODY_TOO_SLOW = auto()


@dataclass(slots=True)
class ConnectionProgress:
    """The progress of one connection. Times are seconds of the event loop."""

    limits: ConnectionLimits
    _since: float  # when the phase, or the body's window, began
    phase: Phase = Phase.IDLE
    moved: bool = False  # the phase began, or an answer is complete, since the last look
    served: bool = False  # an answer was complete
    body_bytes: int = 0  # received
    bytes_written: int = 0  # handed to the transport
    _window_bytes: int = 0  # received before `_since`
    _body_seen: int = 0
    _body_at: float = 0.0
    _flushed: int = -1
    _flushed_at: float = 0.0

    def verdict(
        self, now: float, unsent: int, busy: bool, held_up: bool, short: bool = False
    ) -> ConnectionVerdict:
        """The verdict when the transport holds `unsent` bytes, an answer is being made (`busy`),
        the service does not read at the moment (`held_up`), or memory is `short`."""
        if self.moved:
            self.moved, self._since, self._body_at = False, now, now
            self._window_bytes = self.body_bytes
        elif self.body_bytes != self._body_seen:
            self._body_at = now
        self._body_seen = self.body_bytes
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
            late = now - self._since > self.limits.head_timeout_s - TICK_S
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
        limit_s = self.limits.write_timeout_s
        if short:
            limit_s = min(limit_s, STALLED_S)
        late = now - self._flushed_at > limit_s - TICK_S
        return ConnectionVerdict.CUT_OFF if late else ConnectionVerdict.GO_ON

    def _of_body(self, now: float) -> ConnectionVerdict:
        window = self.limits.body_timeout_s - TICK_S
        if now - self._body_at > window:
            return ConnectionVerdict.BODY_TOO_SLOW
        if now - self._since > window:
            if self.body_bytes - self._window_bytes < self.limits.body_bytes_per_s_min * window:
                return ConnectionVerdict.BODY_TOO_SLOW
            self._since, self._window_bytes = now, self.body_bytes
        return ConnectionVerdict.GO_ON

    def _idle_s(self) -> float:
        """A connection that never asked for anything is not kept alive."""
        limits = self.limits
        return limits.keep_alive_s if self.served else limits.head_timeout_s - TICK_S
