"""The runtime of Spark on this machine: pyspark and its Java.

    lane       pyspark    Java          topics are read with
    SPARK4     ≥ 4.2      17 or newer   the data source "tms"
    SPARK35    3.5.x      8, 11 or 17   the HBase Spark connector

Invariants

* Nothing is started but `java -version`, and pyspark is not imported.
* Java is looked for where Spark's own launcher looks: in JAVA_HOME, else on PATH.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from importlib import metadata
from pathlib import Path

from tms.errors import ConfigError

JAVA_ANSWERS_S = 30.0
_VERSION = re.compile(r"(\d+)\.(\d+)")
_JAVA_VERSION = re.compile(r'version "(?:1\.)?(\d+)')  # 1.8 was the name of 8


class SparkLine(Enum):
    """A line of pyspark that TMS knows, and the Javas that it runs on."""

    SPARK4 = "4.2 or newer"
    SPARK35 = "3.5"

    def runs_on(self, java: int) -> bool:
        """True if this Spark works with this major version of Java."""
        # Hadoop 3.3, which comes with Spark 3.5, calls what later ones have taken out.
        return java in (8, 11, 17) if self is SparkLine.SPARK35 else java >= 17

    @property
    def java(self) -> str:
        """The versions of Java, in words."""
        return "8, 11 or 17" if self is SparkLine.SPARK35 else "17 or newer"


def _said_by(java: str) -> str:
    """The output of `java -version`. Raises `OSError`, `subprocess.SubprocessError`."""
    done = subprocess.run(
        [java, "-version"], capture_output=True, text=True, timeout=JAVA_ANSWERS_S, check=True
    )
    return done.stderr + done.stdout


@dataclass(frozen=True)
class Runtime:
    """The sources of facts about the runtime."""

    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    installed: Callable[[str], str] = metadata.version
    said_by: Callable[[str], str] = _said_by

    def pyspark(self) -> str:
        """The version of pyspark. Raises `ConfigError` when there is none."""
        try:
            return self.installed("pyspark")
        except metadata.PackageNotFoundError as exc:
            raise _wrong(
                "pyspark is not installed in this Python",
                "pip install 'tms-log[spark]' (or tms-log[spark35], for the HBase connector)",
            ) from exc

    def lane(self) -> SparkLine:
        """The line of pyspark. Raises `ConfigError` when there is none, or another one."""
        version = self.pyspark()
        numbers = _VERSION.match(version)
        release = (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
        if release == (3, 5):
            return SparkLine.SPARK35
        if release >= (4, 2):
            return SparkLine.SPARK4
        raise _wrong(
            f"pyspark {version} is installed, TMS works with 4.2 and newer, and with 3.5",
            "pip install 'tms-log[spark]'",
        )

    def java(self) -> str:
        """The program that Spark would start. Raises `ConfigError` when there is none."""
        home = self.environ.get("JAVA_HOME")
        path = shutil.which("java", path=f"{home}/bin" if home else self.environ.get("PATH", ""))
        if path is None:
            where = f"JAVA_HOME is {home}, but has no bin/java" if home else "there is none on PATH"
            raise _wrong(
                f"Spark needs Java, and {where}",
                "install Java 17 (on Debian: apt-get install openjdk-17-jre-headless), and "
                "set JAVA_HOME to it if there are several",
            )
        return path

    def java_version(self) -> int:
        """The major version of that Java. Raises `ConfigError` when it does not tell."""
        java = self.java()
        try:
            said = self.said_by(java)
        except (OSError, subprocess.SubprocessError) as exc:
            raise _wrong(
                f"{java} does not run ({exc})", "reinstall it, or set JAVA_HOME to another one"
            ) from exc
        version = _JAVA_VERSION.search(said)
        if version is None:
            raise _wrong(
                f"{java} does not tell its version, it says {said.strip()[:200]!r}",
                "set JAVA_HOME to Java 17",
            )
        return int(version[1])

    def checked(self) -> SparkLine:
        """The line of pyspark, once its Java fits. Raises `ConfigError`."""
        lane = self.lane()
        java = self.java_version()
        if not lane.runs_on(java):
            there = f"{self.java()} is Java {java}"
            raise _wrong(
                f"pyspark {self.pyspark()} needs Java {lane.java}, but {there}",
                "set JAVA_HOME to Java 17",
            )
        return lane

    def other_spark(self) -> str | None:
        """The version of the Spark that SPARK_HOME names, when it is not the one of pyspark."""
        home = self.environ.get("SPARK_HOME")
        cores = [*Path(home, "jars").glob("spark-core_*.jar")] if home else []
        versions = {core.stem.partition("-")[2].rpartition("-")[2] for core in cores}
        return next(iter(versions - {self.pyspark()}), None)


def _wrong(found: str, fix: str) -> ConfigError:
    return ConfigError(f"{found}: {fix}.", found=found, fix=fix)
