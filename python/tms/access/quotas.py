"""The meter of a principal's quota.

    level   grows by the rate, up to what a second brings ─▶ what was asked for is taken off

Invariants

* An amount that is not known in advance is taken off afterwards: the level may fall below zero, and
  no request passes until it has grown again. So over any period at most rate × time, one second's
  worth and one request pass.
"""

from tms.model.access import Quota

BURST_S = 1.0


class Allowance:
    """An amount that grows by `rate` a second."""

    def __init__(self, rate: float, now_s: float) -> None:
        self._rate = rate
        self._most = max(1.0, rate * BURST_S)
        self._level = self._most
        self._seen_s = now_s

    def wait_s(self, now_s: float) -> float:
        """Seconds until an amount passes; 0: now."""
        grown = self._level + self._rate * max(0.0, now_s - self._seen_s)
        self._level, self._seen_s = min(self._most, grown), max(now_s, self._seen_s)
        return 0.0 if self._level > 0 else (1e-9 - self._level) / self._rate

    def take(self, amount: float) -> None:
        """Take off an amount that has passed."""
        self._level -= amount


class Meter:
    """The rest of a principal's quota."""

    def __init__(self, quota: Quota, now_s: float) -> None:
        self.quota = quota
        rates = quota.requests_s, quota.bytes_in_s, quota.bytes_out_s
        self._allowances = [None if rate is None else Allowance(rate, now_s) for rate in rates]

    def wait_s(self, now_s: float) -> float:
        """Seconds until the next request passes; 0: now."""
        return max((one.wait_s(now_s) for one in self._allowances if one is not None), default=0.0)

    def begin(self) -> None:
        """Count a request that passes."""
        if self._allowances[0] is not None:
            self._allowances[0].take(1)

    def end(self, bytes_in: int, bytes_out: int) -> None:
        """Count the bytes of a request that was answered."""
        for allowance, amount in zip(self._allowances[1:], (bytes_in, bytes_out), strict=True):
            if allowance is not None:
                allowance.take(amount)
