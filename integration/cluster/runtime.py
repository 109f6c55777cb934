"""Java, and the jars from which HBase runs and with which Spark 3.5 reads it: found, or resolved
once and kept.

Invariants

* A folder of jars is named by a hash of the `pom.xml` that lists them: another pom, another folder.
  An existing folder is whole (it is renamed into place when Maven has filled it).
* Of two processes that need the same folder at once, one fills it and the other waits.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

POM = Path(__file__).resolve().parents[1] / "runtime" / "pom.xml"
CONNECTOR_POM = POM.parents[1] / "spark35" / "pom.xml"
RESOLVE_S = 900
COMPILE_S = 120
MAVEN = ("mvn", "-B", "-ntp", "-q", "dependency:copy-dependencies", "-DincludeScope=runtime")
JAVA_MAJOR_MIN = 17
LINE = "TMS_TEST_HBASE"  # names the line of HBase for tests
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
    "-Dzookeeper.admin.enableServer=false",  # it would listen at 8080 on all addresses
    "-XX:TieredStopAtLevel=1",
    "-XX:+ExitOnOutOfMemoryError",
    "-Djava.net.preferIPv4Stack=true",
)
# Java's own warnings, for instance about an archive that it rejects, stay out of a program's
# output.
_LOG = ("-Xlog:disable", "-Xlog:all=warning:stderr")


class Unavailable(Exception):
    """A program, a file or a server that a test needs is missing; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """A Java program, a folder of jars, and options of Java beyond those that every program
    needs."""

    java: str
    lib: Path
    options: tuple[str, ...] = ()

    def command(
        self, main: str, *arguments: str, conf: Path, heap_mb: int, classes: Path | None = None
    ) -> list[str]:
        """The command that runs a class of the jars or of a folder; `conf` is on the class path."""
        path = [f"{self.lib}/*", *([] if classes is None else [str(classes)]), str(conf)]
        archive = self.archive
        return [
            self.java,
            f"-Xmx{heap_mb}m",
            *OPTIONS,
            *self.options,
            *((*_LOG, f"-XX:SharedArchiveFile={archive}") if archive.exists() else ()),
            "-cp",
            ":".join(path),
            main,
            *arguments,
        ]

    @property
    def archive(self) -> Path:
        """The path of the archive of the classes of these jars, if it exists; `archive` makes
        it."""
        release = Path(self.java).resolve().parents[1] / "release"
        of = release.read_bytes() if release.exists() else self.java.encode()
        digest = hashlib.sha256(of).hexdigest()[:16]
        return self.lib.with_name(f"{self.lib.name}-archive-{digest}") / "hbase.jsa"

    def compiled(self, source: Path) -> Path:
        """The folder of a Java file's classes; they are compiled once."""
        digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
        folder = self.lib.with_name(f"{self.lib.name}-{source.stem}-{digest}")
        return filled(folder, lambda fresh: self._compile(source, fresh))

    def _compile(self, source: Path, into: Path) -> None:
        compiler = (self.java, "-m", "jdk.compiler/com.sun.tools.javac.Main")
        path = ":".join(map(str, self.lib.glob("*.jar")))  # the main of a module expands no *
        options = ("-cp", path, "-d", str(into), str(source))
        succeed([*compiler, *options], COMPILE_S, f"{self.java} cannot compile {source}")

    def extract(self, jar: str, member: str, target: Path) -> Path:
        """Copy a file out of the only jar that matches a pattern."""
        (found,) = self.lib.glob(jar)
        with zipfile.ZipFile(found) as archive:
            target.write_bytes(archive.read(member))
        return target


def resolve(line: str = "") -> Runtime:
    """Java and the jars of a line of HBase, 2.6 or 2.5, by default the line that the environment
    names; the first call on a machine takes Maven about a minute."""
    line = line or os.environ.get(LINE, LINES[0])
    if line not in LINES:
        raise Unavailable(f"{LINE} is {line!r}; give one of {', '.join(LINES)}")
    return Runtime(java(), jars("hbase", POM, *([] if line == LINES[0] else [f"hbase-{line}"])))


def resolve_connector() -> Path:
    """The folder of jars with which Spark 3.5 reads HBase."""
    return jars("spark35", CONNECTOR_POM)


def jars(name: str, pom: Path, *profiles: str) -> Path:
    """The folder of the jars that a pom lists, with these profiles."""
    digest = hashlib.sha256(pom.read_bytes()).hexdigest()[:16]
    lib = cache() / "-".join([*(profiles or [name]), digest])
    return filled(lib, lambda fresh: _fill(fresh, pom, profiles))


def cache() -> Path:
    """The folder of what is fetched once."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tms"


def succeed(command: Sequence[str], timeout_s: float, wrong: str, cwd: Path | None = None) -> None:
    """Run a program. Raises `Unavailable` with `wrong` and the end of its output if it fails."""
    done = subprocess.run(
        command,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
    )
    if done.returncode != 0:
        raise Unavailable(f"{wrong}:\n{done.stdout[-4000:]}")


def filled(folder: Path, fill: Callable[[Path], None]) -> Path:
    """Fill a folder, in the first process that needs it; the folder."""
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with open(folder.with_name(f"{folder.name}.lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.is_dir():
                fresh = folder.with_name(f"{folder.name}.new")
                shutil.rmtree(fresh, ignore_errors=True)
                fill(fresh)
                os.rename(fresh, folder)
    return folder


def _fill(fresh: Path, pom: Path, profiles: Sequence[str]) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise Unavailable(
            "Maven is needed to fetch jars and there is no mvn on PATH; install it (on Debian: "
            "apt-get install maven) and try again, or let `make test` install it as root"
        )
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
