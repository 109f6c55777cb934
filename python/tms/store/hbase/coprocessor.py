"""What the coprocessor in HBase's region servers says of itself: whether it is there, of which
version, whether it keeps up, and what it has cleaned.

Invariants

* Publishing and reading never depend on it. What is found is for operators, and for pruning.
* What is not known counts as not cleaned.
"""

import threading
from collections import Counter
from collections.abc import Iterable

import msgspec

from tms.clock import Clock
from tms.errors import TMSError
from tms.store.hbase.admin import Admin, Probe, Region
from tms.store.hbase.rows import MESSAGES, PAYLOADS

VERSION = "0.1.0"  # of the coprocessor that belongs to this code
CLEANED_TABLES = (MESSAGES, PAYLOADS)
LOOK_S = 30.0
LOOK_AGAIN_S = 5.0  # when something was wrong
FRESH_S = 60.0  # after the start, records that are old say only that nobody wrote them before
AGE_MS_MAX = 300_000  # records older than that in a region server are stale
_NEXT = "Run `tms hbase status`."


class _Note(msgspec.Struct):
    """What a region notes of its last cleaning; see `docs/hbase.md`."""

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
        """What the last look found, in sentences; begins another one when that is long ago."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            if not self._looking and now_s >= self._look_at_s:
                self._looking = True
                threading.Thread(target=self._look, name="tms-hbase-watch", daemon=True).start()
            return list(self._found)

    def look(self) -> list[str]:
        """What is wrong in the regions, in sentences. Raises when they cannot be asked."""
        probes = [
            (region, self._admin.probe(region))
            for table in CLEANED_TABLES
            for region in self._admin.regions(table)
        ]
        young = self._clock.monotonic_s() < self._began_s + FRESH_S
        return judge(probes, self._admin.place.namespace, young)

    def cleaned_ms(self) -> int:
        """The time up to which no region has anything left of transactions that were invalid; see
        `Store.cleaned_ms`. 0 when a region has not noted anything."""
        notes = self._admin.region_notes()
        bounds = [
            _bound_ms(notes.get(f"{table}/{region.encoded}"))
            for table in CLEANED_TABLES
            for region in self._admin.regions(table)
        ]
        return min(bounds, default=0)

    def close(self) -> None:
        """Look no more."""
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


def judge(
    probes: Iterable[tuple[Region, Probe | None]], namespace: str, young: bool = False
) -> list[str]:
    """What these answers say is wrong, in sentences. `young`: old records are to be expected."""
    asked: Counter[str] = Counter()
    missing: Counter[str] = Counter()
    other: Counter[tuple[str, str]] = Counter()
    off: Counter[str] = Counter()
    stale: Counter[str] = Counter()
    for region, probe in probes:
        asked[region.table] += 1
        if probe is None:
            missing[region.table] += 1
        elif probe.version != VERSION:
            other[region.table, probe.version] += 1
        elif not probe.enabled:
            off[region.table] += 1
        elif not young and min(_age(probe.metadata_age_ms), _age(probe.image_age_ms)) < 0:
            stale[region.table] += 1
    said = [
        (missing, "The coprocessor is missing in", "what expired stays, and is not hidden."),
        (off, "The coprocessor is switched off in", "nothing is cleaned or hidden."),
        (stale, "The coprocessor has old records in", "cleaning waits."),
    ]
    found = [
        f"{begin} {count} of {asked[table]} regions of {namespace}:{table}: {end} {_NEXT}"
        for counts, begin, end in said
        for table, count in counts.items()
    ]
    return found + [
        f"The coprocessor in {count} of {asked[table]} regions of {namespace}:{table} has version "
        f"{version}, this is {VERSION}: run `tms hbase upgrade`."
        for (table, version), count in other.items()
    ]


def _age(ms: int | None) -> int:
    """How much younger than is allowed; negative when it is too old, or was never read."""
    return -1 if ms is None else AGE_MS_MAX - ms


def _bound_ms(raw: bytes | None) -> int:
    try:
        return 0 if raw is None else msgspec.json.decode(raw, type=_Note).bound_ms
    except msgspec.MsgspecError:
        return 0
