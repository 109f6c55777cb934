"""Libraries that only some features need: an extra of the distribution brings each of them.

The distribution alone has what a client of a service needs. Any other library is imported at its
first use, within `needed`, so that a missing one raises the same error everywhere.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec

from tms.errors import ConfigError

DISTRIBUTION = "tms-log"  # its name to pip; `tms` is the import


@contextmanager
def needed(feature: str, extra: str) -> Iterator[None]:
    """Around imports that `feature` needs and `extra` brings. Raises `ConfigError` for a library
    that is not installed."""
    try:
        yield
    except ModuleNotFoundError as exc:
        library = (exc.name or "").partition(".")[0]
        if library in ("", "tms"):  # a defect of ours
            raise
        raise missing(feature, library, extra) from exc


def missing(feature: str, library: str, extra: str) -> ConfigError:
    """The error for a `feature` without its library, which `extra` brings."""
    fix = f"pip install '{DISTRIBUTION}[{extra}]'"
    return ConfigError(
        f"{feature} needs {library}, which is not installed in this Python: {fix}.",
        library=library,
        extra=extra,
        next=fix,
    )


@cache
def installed(library: str) -> bool:
    """True if this Python has the library; it is not imported."""
    return find_spec(library) is not None
