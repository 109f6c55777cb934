"""Java, and the jars that HBase runs from and that Spark 3.5 reads it with: found, or resolved once
and kept.

Invariants

* A folder of jars is named by a hash of the `pom.xml` that lists them: another pom, another
  folder; a folder that is there is whole (it is renamed into place when Maven has filled it).
* Of two processes that need the same jars at once, one resolves them and the other waits.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

POM = Path(__file__).resolve().parents[1] / "runtime" / "pom.xml"
CONNECTOR_POM = POM.parents[1] / "spark35" / "pom.xml"
RESOLVE_S = 900
MAVEN = ("mvn", "-B", "-ntp", "-q", "dependency:copy-dependencies", "-DincludeScope=runtime")
JAVA_MAJOR_MIN = 17
LINE = "TMS_TEST_HBASE"  # names the line of HBase that tests run on
LINES = ("2.6", "2.5")

# HBase and Hadoop reach into packages that Java 17 keeps closed.
_OPENED = (
    "java.base/java.nio",
    "java.base/sun.nio.ch",
    "java.base/java.lang",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.lang.reflect",
    "java.base/java.io",
    "java.base/java.net",
    "java.base/jdk.internal.ref",
)
OPTIONS = (
    *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED),
    "--add-exports=java.base/jdk.internal.misc=ALL-UNNAMED",
    "-XX:+UseSerialGC",
    "-Dzookeeper.admin.enableServer=false",  # it would listen at 8080 for everybody
    "-XX:TieredStopAtLevel=1",
    "-XX:+ExitOnOutOfMemoryError",
    "-Djava.net.preferIPv4Stack=true",
)


class Unavailable(Exception):
    """A program, a file or a server that a test needs is not there; says what to do."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """A Java program and a folder of jars."""

    java: str
    lib: Path

    def command(
        self, main: str, *arguments: str, conf: Path, heap_mb: int, options: Sequence[str] = ()
    ) -> list[str]:
        """The command that runs a class; what lies in `conf` is on its class path."""
        return [
            self.java,
            f"-Xmx{heap_mb}m",
            *OPTIONS,
            *options,
            "-cp",
            f"{conf}:{self.lib}/*",
            main,
            *arguments,
        ]

    def extract(self, jar: str, member: str, target: Path) -> Path:
        """Copy a file out of the one jar that fits a pattern."""
        (found,) = self.lib.glob(jar)
        with zipfile.ZipFile(found) as archive:
            target.write_bytes(archive.read(member))
        return target


def resolve(line: str = "") -> Runtime:
    """Java and the jars of a line of HBase, 2.6 or 2.5, or of the one that the environment names;
    the first call on a machine takes Maven about a minute."""
    line = line or os.environ.get(LINE, LINES[0])
    if line not in LINES:
        raise Unavailable(f"{LINE} is {line!r}; give one of {', '.join(LINES)}")
    return Runtime(java(), jars("hbase", POM, *([] if line == LINES[0] else [f"hbase-{line}"])))


def resolve_connector() -> Path:
    """The folder of jars with which Spark 3.5 reads HBase."""
    return jars("spark35", CONNECTOR_POM)


def jars(name: str, pom: Path, *profiles: str) -> Path:
    """The folder of the jars that a pom lists, with these profiles."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tms"
    digest = hashlib.sha256(pom.read_bytes()).hexdigest()[:16]
    lib = cache / "-".join([*(profiles or [name]), digest])
    if not lib.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with open(lib.with_name(f"{lib.name}.lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not lib.is_dir():
                _fill(lib, pom, profiles)
    return lib


def _fill(lib: Path, pom: Path, profiles: Sequence[str]) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise Unavailable(
            "Maven is needed to fetch jars and there is no mvn on PATH; install it (on Debian: "
            "apt-get install maven) and try again, or let `make test` install it as root"
        )
    fresh = lib.with_name(f"{lib.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        subprocess.run(
            [
                maven,
                *MAVEN[1:],
                *(f"-P{profile}" for profile in profiles),
                *("-f", str(pom), f"-DoutputDirectory={fresh}"),
            ],
            check=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=RESOLVE_S,
        )
    except subprocess.CalledProcessError as error:
        said = "\n".join(str(error.stdout).splitlines()[-30:])
        raise Unavailable(
            f"Maven could not resolve the jars named in {pom}:\n{said}\n"
            "Check the network, or the mirror in ~/.m2/settings.xml, and try again"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise Unavailable(
            f"Maven did not resolve the jars named in {pom} within {RESOLVE_S} s; what it has "
            "fetched is kept, so try again"
        ) from error
    os.rename(fresh, lib)


def java() -> str:
    """The `java` that `JAVA_HOME` or the path names."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(f"{home}/bin/java") if home else shutil.which("java")
    if found is None:
        raise Unavailable(
            f"Java {JAVA_MAJOR_MIN} is needed to run HBase and there is none "
            f"{f'in JAVA_HOME ({home})' if home else 'on PATH'}; install it (on Debian: apt-get "
            f"install openjdk-{JAVA_MAJOR_MIN}-jdk-headless), or let `make test` install it as root"
        )
    return found
