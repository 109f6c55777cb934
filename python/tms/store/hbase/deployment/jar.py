"""A jar of the coprocessor: finding, checking and naming it.

    tms-coprocessor-0.1.0.jar                 as it is built and packed
    tms-coprocessor-0.1.0-1f2e3d4c.jar        as region servers read it: with the first 8 digits of
                                              its SHA-256, since they keep what a path once held

The search order: `--jar`; the installed package; `coprocessor/target` of a source tree.
"""

import hashlib
import io
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path

from tms.errors import ConfigError
from tms.store.hbase.coprocessor import VERSION
from tms.store.hbase.deployment.tables import COPROCESSOR

BYTES_MAX = 64 << 20
_CLASS = COPROCESSOR.replace(".", "/") + ".class"
_CLASS_MAGIC = b"\xca\xfe\xba\xbe"
_MANIFEST = "META-INF/MANIFEST.MF"
_VERSION_LINE = re.compile(rb"^Implementation-Version: *([^\r\n]+?) *\r?$", re.MULTILINE)
_NEXT = (
    "`make jar` in a source tree builds it; --jar names one; --no-coprocessor installs without it"
)


@dataclass(frozen=True, slots=True)
class Jar:
    """A jar with the coprocessor of this version."""

    source: Path
    content: bytes
    version: str

    @property
    def sha256(self) -> str:
        """The hash of its bytes, in hex."""
        return hashlib.sha256(self.content).hexdigest()

    @property
    def name(self) -> str:
        """The jar's path as region servers read it."""
        return f"tms-coprocessor-{self.version}-{self.sha256[:8]}.jar"


def find(given: Path | None) -> Jar:
    """The jar of `--jar` or of the search. Raises `ConfigError`."""
    if given is not None:
        return read(given)
    package = Path(__file__).parent
    name = f"tms-coprocessor-{VERSION}.jar"
    places = [package / name, package.parents[4] / "coprocessor" / "target" / name]
    for place in places:
        if place.is_file():
            return read(place)
    raise ConfigError(
        f"There is no jar of the coprocessor: neither {' nor '.join(map(str, places))} is there.",
        next=_NEXT,
    )


def read(path: Path) -> Jar:
    """The jar in this file. Raises `ConfigError`."""
    try:
        with path.open("rb") as file:
            content = file.read(BYTES_MAX + 1)
    except OSError as exc:
        raise ConfigError(f"The jar {path} cannot be read: {exc.strerror}.", next=_NEXT) from exc
    if len(content) > BYTES_MAX:
        raise ConfigError(f"{path} has more than {BYTES_MAX:,} bytes: no jar of TMS.", next=_NEXT)
    try:
        version = _version_in(content)
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as exc:
        raise ConfigError(f"{path} is no jar, or a damaged one: {exc}.", next=_NEXT) from exc
    except KeyError as exc:
        raise ConfigError(f"{path} is a jar of something else: {exc.args[0]}.", next=_NEXT) from exc
    if version != VERSION:
        raise ConfigError(
            f"{path} holds the coprocessor of TMS {version}, and this TMS needs that of {VERSION}.",
            next=f"give the jar of {VERSION}, or run the `tms` of {version}",
        )
    return Jar(path, content, version)


def _version_in(content: bytes) -> str:
    """The version of the coprocessor in a jar. Raises `KeyError` if there is none."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        if (damaged := archive.testzip()) is not None:
            raise zipfile.BadZipFile(f"{damaged} does not fit its checksum")
        names = set(archive.namelist())
        if _CLASS not in names or not archive.read(_CLASS).startswith(_CLASS_MAGIC):
            raise KeyError(f"it has no class {COPROCESSOR}")
        found = _VERSION_LINE.search(archive.read(_MANIFEST)) if _MANIFEST in names else None
        if found is None:
            raise KeyError("its manifest names no Implementation-Version")
        return found[1].decode(errors="replace")
