"""The memory of the process: what glibc keeps of it for the next request, and what goes back.

* What requests return is kept for the next ones: page faults cost more than the copies.
* After more than `TRIM_BYTES` of it, the system gets back what is free, every `TRIM_EVERY_S` at
  most, so that a flood does not keep its memory until the service ends.
* Arrow takes its memory from jemalloc, which gives back what is free within a second: mimalloc
  keeps what each thread returned, and the aligned pieces that Arrow wants break up glibc's heap.
  All threads share one arena, or each would keep for itself what the largest block took.
* What was made at the start stays until the end. The collector of cycles would look at all of it,
  for 20 ms each time, while everybody waits; it is shown only what comes later.

Another C library than glibc does as it likes.
"""

import asyncio
import ctypes
import gc
import os
from collections.abc import Callable

from tms.server.service import Service

TRIM_EVERY_S = 5.0
TRIM_BYTES = 8 << 20
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_MMAP_THRESHOLD_BYTES = 32 << 20  # the most that glibc takes
_TRIM_THRESHOLD_BYTES = 16 << 20
_ARENAS = 2


def configure() -> None:
    """Set how memory is kept; before pyarrow is loaded."""
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "jemalloc")
    os.environ.setdefault("JE_ARROW_MALLOC_CONF", "narenas:1")
    mallopt = _glibc("mallopt")
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _TRIM_THRESHOLD_BYTES)
        mallopt(_M_ARENA_MAX, _ARENAS)


def keep() -> None:
    """Let the collector of cycles pass over all that there is."""
    gc.freeze()


async def trim_regularly(service: Service) -> None:
    """Return free memory to the system for as long as the service runs."""
    trim, trimmed = _glibc("malloc_trim"), 0
    while trim is not None:
        await asyncio.sleep(TRIM_EVERY_S)
        returned = service.publishing.returned + service.fetching.returned
        if returned - trimmed >= TRIM_BYTES:
            trimmed = returned
            await service.in_thread(trim, 0)


def _glibc(name: str) -> Callable[..., int] | None:
    try:
        function: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):
        return None
    return function
