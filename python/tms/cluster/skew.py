"""Clock skew: how far the wall clocks of other instances are from the one of this instance.

    ask ─▶ the other's time T ─▶ answer      skew = T − the middle of asking and answer

Invariants

* A skew counts without half the time that the answer took: that much is uncertain.
* Each instance is asked once in `LOOK_S`, in the background, by one question at a time. Skews of
  instances that have gone are forgotten.
"""

from collections.abc import Callable, Iterable
from functools import partial

from tms.errors import TMSError
from tms.runtime.clock import Clock
from tms.topics.owners import Peer

LOOK_S = 30.0
SKEW_MS_MAX = 1_000  # beyond which there is a warning


class ClockSkews:
    """The skews of one instance. `look` is for one thread at a time, the rest for all."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._present: frozenset[str] = frozenset()
        self._skews_ms: dict[str, int] = {}  # by instance; positive: its clock is ahead
        self._asking: set[str] = set()
        self._due_s = 0.0

    def look(self, peers: Iterable[Peer], ask: Callable[[Callable[[], None]], object]) -> None:
        """Measure the skews if that is due; `ask` runs a question in the background."""
        now_s = self._clock.monotonic_s()
        if now_s < self._due_s:
            return
        self._due_s = now_s + LOOK_S
        present = {peer.name: peer for peer in peers}
        self._present = frozenset(present)
        for gone in self._skews_ms.keys() - self._present:
            self._skews_ms.pop(gone, None)
        for id, peer in present.items():
            if id not in self._asking:
                self._asking.add(id)
                ask(partial(self._measure, peer))

    def _measure(self, peer: Peer) -> None:
        try:
            before_ms = self._clock.now_ms()
            before_s = self._clock.monotonic_s()
            load = peer.load()
            half_ms = round((self._clock.monotonic_s() - before_s) * 500)
            if load.now_ms:  # earlier versions do not tell their time
                apart_ms = load.now_ms - before_ms - half_ms
                certain_ms = max(0, abs(apart_ms) - half_ms)
                self._skews_ms[peer.name] = certain_ms if apart_ms > 0 else -certain_ms
        except TMSError:  # it is away, or goes: the membership says so
            pass
        finally:
            self._asking.discard(peer.name)

    def _measured(self) -> list[tuple[str, int]]:
        """The skews of instances that are there."""
        return [(id, ms) for id, ms in sorted(self._skews_ms.items()) if id in self._present]

    def largest_ms(self) -> int:
        """The largest skew, in either direction."""
        return max((abs(ms) for _, ms in self._measured()), default=0)

    def warnings(self) -> list[str]:
        """The instances whose clocks are too far away, in sentences."""
        return [
            f"The clock of the instance {id} is {abs(ms) / 1000:,.1f} s "
            f"{'ahead of' if ms > 0 else 'behind'} the one of this instance: delayed messages may "
            "be that much early or late. Let NTP set the clocks (`chronyc tracking`)."
            for id, ms in self._measured()
            if abs(ms) > SKEW_MS_MAX
        ]
