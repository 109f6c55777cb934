"""The jar of the coprocessor, built once, and jars that are wrong in one way each.

Invariants

* Of two processes that need the jar at once, one builds it and the other waits.
* A patch keeps the length of its member: a class file stays valid.
"""

import fcntl
import os
import shutil
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

import tms
from integration.cluster import Unavailable
from integration.cluster.runtime import succeed

ROOT = Path(__file__).resolve().parents[1]
JAR = ROOT / "coprocessor" / "target" / f"tms-coprocessor-{tms.__version__}.jar"
OBSERVER = "io/tms/hbase/RetentionObserver.class"
PROBE = "io/tms/hbase/Probe.class"
BUILD_S = 900


def build() -> Path:
    """The jar of this source tree, built unless it is newer than its sources."""
    with open(ROOT / "coprocessor" / "pom.xml") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not JAR.exists() or JAR.stat().st_mtime < max(_changed_at(_sources())):
            _build()
    return JAR


def _sources() -> Iterable[Path]:
    yield from (ROOT / "pom.xml", ROOT / "coprocessor" / "pom.xml")
    yield from (ROOT / "coprocessor" / "src" / "main").rglob("*.java")


def _changed_at(paths: Iterable[Path]) -> Iterable[float]:
    return (path.stat().st_mtime for path in paths)


def _build() -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise Unavailable("Maven is needed to build the coprocessor; install it and try again")
    command = [maven, "-B", "-ntp", "-q", "-DskipTests", "package"]
    succeed(command, BUILD_S, "Maven could not build the coprocessor", ROOT)
    os.utime(JAR)  # Maven does not touch an unchanged jar


def changed(
    jar: Path, target: Path, change: Callable[[str, bytes], bytes | None] = lambda name, raw: raw
) -> Path:
    """A copy of a jar with its members changed, or left out with None; its bytes always differ."""
    with zipfile.ZipFile(jar) as source, zipfile.ZipFile(target, "w") as made:
        for info in source.infolist():
            raw = change(info.filename, source.read(info))
            if raw is not None:
                made.writestr(info.filename, raw)
        made.comment = target.name.encode()
    return target


def replaced(member: str, old: bytes, new: bytes) -> Callable[[str, bytes], bytes]:
    """Replaces bytes in one member of a jar."""
    assert len(old) == len(new)

    def change(name: str, raw: bytes) -> bytes:
        if name != member:
            return raw
        assert old in raw, f"{member} does not hold {old!r}"
        return raw.replace(old, new)

    return change
