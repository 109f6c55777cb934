"""A wall clock that jumps while a process runs: libfaketime, set by a file that it reads at every
look at the clock. Monotonic clocks stay real, as when an operator or NTP sets the time."""

from importlib.util import find_spec
from pathlib import Path

LIBRARY = "vendor/libfaketime/src/libfaketime.so.1"


class WallClock:
    """The wall clock of the processes that are started with `env`."""

    def __init__(self, file: Path) -> None:
        package = find_spec("libfaketime")
        assert package is not None and package.origin is not None, "install libfaketime: `make env`"
        library = Path(package.origin).parent / LIBRARY
        assert library.exists(), f"{library} is missing: install libfaketime anew, `make env`"
        self._file = file
        self.set()
        self.env = {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",
        }

    def set(self, ahead_s: int = 0, speed: int = 1) -> None:
        """Let the clock be that far ahead of the real one, or behind it if negative, and run that
        many times as fast."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{ahead_s:+d} x{speed}\n" if speed > 1 else f"{ahead_s:+d}\n")
        new.replace(self._file)
