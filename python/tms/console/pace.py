"""The pace of pages that go on by themselves: all of them together take a share of a core."""

from collections.abc import Iterator
from contextlib import contextmanager

SHARE = 0.05


class ViewerPace:
    """The pages of one kind that are looked at. Used by the event loop's thread."""

    def __init__(self, least_s: float) -> None:
        self._least_s = least_s
        self.viewers = 0

    @contextmanager
    def viewer(self) -> Iterator[None]:
        """Somebody looks at one."""
        self.viewers += 1
        try:
            yield
        finally:
            self.viewers -= 1

    def pause_s(self, took_s: float) -> float:
        """The pause of each after work that took so long."""
        return max(self._least_s, took_s * self.viewers / SHARE)
