"""An archive of the classes that HBase loads (Java's class-data sharing): a JVM that maps it does
not read and verify them again, and starts in half the processor time.

    make(runtime)      starts an HBase once, to learn its classes; half a minute for each machine

Invariants

* Nothing depends on an archive: Java ignores an archive of other jars or from another Java.
* An archive belongs to a folder of jars and to a Java, and is whole (`filled`).
"""

import dataclasses
import tempfile
from pathlib import Path

from integration.cluster.hbase import Standalone
from integration.cluster.runtime import Runtime, filled, succeed

DUMP_S = 300
_LISTS = "classes-%p"  # %p: the process


def make(runtime: Runtime) -> Path:
    """The archive for these jars, made unless it is there."""
    path = runtime.archive
    return filled(path.parent, lambda fresh: _fill(fresh, runtime)) / path.name


def _fill(fresh: Path, runtime: Runtime) -> None:
    fresh.mkdir()
    with tempfile.TemporaryDirectory(prefix="tms-hbase-") as name:
        directory = Path(name)
        listing = f"-XX:DumpLoadedClassList={directory}/{_LISTS}"
        watched = dataclasses.replace(runtime, options=(listing,))
        hbase = Standalone(directory / "hbase", runtime=watched)
        try:
            hbase.start()
            hbase.admin().run("servers")
        finally:
            hbase.stop()
        lists = [path.read_text().splitlines() for path in directory.glob("classes-*")]
        classes = directory / "classes"
        classes.write_text("\n".join(dict.fromkeys(line for one in lists for line in one)))
        _dump(runtime, classes, fresh / runtime.archive.name)


def _dump(runtime: Runtime, classes: Path, target: Path) -> None:
    options = ("-Xshare:dump", f"-XX:SharedClassListFile={classes}", "-XX:+UseSerialGC")
    into = (f"-XX:SharedArchiveFile={target}", "-cp", f"{runtime.lib}/*")
    succeed([runtime.java, *options, *into], DUMP_S, f"{runtime.java} cannot archive classes")
