"""Certificates for tests, made by this machine's `openssl`: authorities, and certificates that they
sign."""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
HERE = ("IP:127.0.0.1", "DNS:localhost")


@dataclass(frozen=True)
class Certificate:
    """The files of a certificate and its key."""

    cert: Path
    key: Path

    @property
    def pair(self) -> tuple[str, str]:
        return str(self.cert), str(self.key)

    def replace(self, other: "Certificate") -> None:
        """Replace these files by those of another certificate, as a renewal does."""
        for mine, theirs in ((self.cert, other.cert), (self.key, other.key)):
            new = mine.with_suffix(".new")
            new.write_bytes(theirs.read_bytes())
            new.rename(mine)


class Authority:
    """A CA whose files are in `folder`."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._number = 0
        self.ca, self._key = folder / f"{name}.pem", folder / f"{name}.key"
        files = ("-keyout", str(self._key), "-out", str(self.ca))
        _openssl("req", "-x509", *_KEY, *files, "-days", "30", "-subj", f"/CN={name}")

    def sign(
        self, name: str | None = "service", of: Sequence[str] = HERE, days: int = 10
    ) -> Certificate:
        """A certificate of these hosts; with `days` below 0 it has expired."""
        self._number += 1
        stem = self._folder / f"{self.ca.stem}-{self._number}"
        made = Certificate(stem.with_suffix(".pem"), stem.with_suffix(".key"))
        request, extensions = stem.with_suffix(".csr"), stem.with_suffix(".ext")
        subject = f"/CN={name}" if name else "/"
        _openssl(
            "req", "-new", *_KEY, "-keyout", str(made.key), "-out", str(request), "-subj", subject
        )
        names = f"subjectAltName={','.join(of)}\n" if of else ""
        extensions.write_text(f"basicConstraints=CA:FALSE\n{names}")
        signing = ("-CA", str(self.ca), "-CAkey", str(self._key), "-CAcreateserial")
        files = ("-in", str(request), "-out", str(made.cert), "-extfile", str(extensions))
        _openssl("x509", "-req", *signing, *files, "-days", str(days))
        return made


def _openssl(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
