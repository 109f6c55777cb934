"""The bytes of all appends that wait to be written, over all partitions, and their bound."""

import threading

from tms.errors import Overloaded


class InFlight:
    """Counts what is under way. Thread-safe."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes = 0
        self._bytes_max = bytes_max
        self._lock = threading.Lock()

    def take(self, size: int) -> None:
        """Count `size` more bytes; alone, any size fits. Raises `Overloaded`."""
        with self._lock:
            if self.bytes and self.bytes + size > self._bytes_max:
                raise Overloaded(
                    f"{self.bytes} bytes are waiting to be written, the bound of this engine. "
                    "Try again later.",
                    retry_after_s=0.1,
                )
            self.bytes += size

    def give(self, size: int) -> None:
        """Count `size` bytes less."""
        with self._lock:
            self.bytes -= size
