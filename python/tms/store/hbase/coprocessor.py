"""The reports of the coprocessor in HBase's region servers: its presence, its version, its delays,
and its progress of cleaning.

Invariants

* Publishing and reading never depend on it. Its reports are for operators, and for pruning.
* A region without a report counts as not cleaned.
"""

import contextlib
import threading
from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from tms.errors import TMSError
from tms.runtime.clock import Clock
from tms.runtime.decoding import from_json
from tms.store.hbase.admin import Admin, Probe, Region
from tms.store.hbase.rows import MESSAGES, PAYLOADS

VERSION = "0.1.0"  # of the coprocessor that belongs to this code
CLEANED_TABLES = (MESSAGES, PAYLOADS)
LOOK_S = 30.0
LOOK_AGAIN_S = 5.0  # after a look that found a fault
FRESH_S = 60.0  # after the start, in which old records may only mean that no instance ran before
AGE_MS_MAX = 300_000  # records older than that in a region server are stale
_NEXT = "Run `tms hbase status`."
_WRONG = {
    "missing": f"The coprocessor is missing in {{}}: nothing expires, or is hidden. {_NEXT}",
    "off": f"The coprocessor is switched off in {{}}: nothing is cleaned or hidden. {_NEXT}",
    "stale": f"The coprocessor has old records in {{}}: cleaning waits. {_NEXT}",
}


class _Note(msgspec.Struct):
    """A region's note of its last cleaning; `docs/hbase.md` describes it."""

    bound_ms: int


class CoprocessorWatch:
    """Looks at all regions now and then, in the background; again and again while something is
    wrong. Thread-safe. Close it to end that."""

    def __init__(self, admin: Admin, clock: Clock) -> None:
        self._admin = admin
        self._clock = clock
        self._began_s = clock.monotonic_s()
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._found: list[str] = []
        self._look_at_s = float("-inf")
        self._looking = False

    def warnings(self) -> list[str]:
        """The warnings of the last look, as sentences; starts another look if that was long ago."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            if not self._looking and now_s >= self._look_at_s:
                self._looking = True
                threading.Thread(target=self._look, name="tms-hbase-watch", daemon=True).start()
            return list(self._found)

    def look(self) -> list[str]:
        """The faults of all regions, as sentences. Raises if a region does not answer."""
        probes = [
            (region, self._admin.probe(region))
            for table in CLEANED_TABLES
            for region in self._admin.regions(table)
        ]
        young = self._clock.monotonic_s() < self._began_s + FRESH_S
        return judge(probes, self._admin.place.namespace, young)

    def cleaned_ms(self) -> int:
        """The time in ms up to which every region is clean of invalid transactions, as
        `Store.cleaned_ms`; 0 if a region has not noted any."""
        known = bounds(self._admin.region_notes())
        regions = (one for table in CLEANED_TABLES for one in self._admin.regions(table))
        return min((known.get(f"{one.table}/{one.encoded}", 0) for one in regions), default=0)

    def close(self) -> None:
        """Stop looking."""
        self._closed.set()

    def _look(self) -> None:
        try:
            while not self._closed.is_set():
                try:
                    found = self.look()
                except TMSError as error:
                    found = [f"The coprocessor cannot be asked: {error.message}"]
                with self._lock:
                    self._found = found
                if not found:
                    break
                self._closed.wait(LOOK_AGAIN_S)
        finally:
            with self._lock:
                self._look_at_s = self._clock.monotonic_s() + LOOK_S
                self._looking = False


def verdict(probe: Probe | None, version: str) -> str:
    """`0.1.0`, `missing`, `off`, or `0.0.9 instead of 0.1.0`."""
    if probe is None:
        return "missing"
    if probe.version != version:
        return f"{probe.version} instead of {version}"
    return version if probe.enabled else "off"


def judge(
    probes: Iterable[tuple[Region, Probe | None]], namespace: str, young: bool = False
) -> list[str]:
    """The faults in these reports, as sentences. `young`: old records are expected."""
    asked: Counter[str] = Counter()
    wrong: Counter[tuple[str, str]] = Counter()
    for region, probe in probes:
        asked[region.table] += 1
        found = verdict(probe, VERSION)
        if probe is not None and found == VERSION and not young and _is_stale(probe):
            found = "stale"
        if found != VERSION:
            wrong[found, region.table] += 1
    return [
        _WRONG.get(
            found, f"The coprocessor has version {found} in {{}}: run `tms hbase upgrade`."
        ).format(f"{count} of {asked[table]} regions of {namespace}:{table}")
        for (found, table), count in wrong.items()
    ]


def _is_stale(probe: Probe) -> bool:
    ages_ms = (probe.metadata_age_ms, probe.image_age_ms)
    return any(age_ms is None or age_ms > AGE_MS_MAX for age_ms in ages_ms)


def bounds(notes: Mapping[str, bytes]) -> dict[str, int]:
    """The time up to which each region is cleaned, from its notes; an unreadable note is left
    out."""
    found = {}
    for name, raw in notes.items():
        with contextlib.suppress(msgspec.MsgspecError):
            found[name] = from_json(raw, _Note).bound_ms
    return found
