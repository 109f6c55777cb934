"""TLS: the contexts of clients and of the service from certificate files, and the meaning of
failures.

    ClientTls   the CAs that a client trusts, its certificate  ─▶ a context for its connections
    ServerTls   the certificate of a service, its clients' CAs ─▶ a context for those of clients

* TLS 1.2 and newer. A client always verifies the other side: its certificate, and that it is of the
  host that the URL names.
* A file that is wrong, is missing, or requires a password is a `ConfigError` that names it.
* A client notices changed files; if a new one is wrong, the last good context stays in use.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from tms.errors import ConfigError, Invalid

if TYPE_CHECKING:
    import ssl  # takes as long to load as all of a client, which may need none

PathText = str | os.PathLike[str]
FilesVersion = tuple[tuple[int, int, int], ...]

# OpenSSL's name for an alert of the other side, and the alert's meaning for our certificate.
_REFUSED = {
    "ALERT_CERTIFICATE_EXPIRED": "it has expired; renew it",
    "ALERT_UNKNOWN_CA": "it does not trust the CA that signed it; use one of a CA that the service "
    "was given as --tls-client-ca",
    "ALERT_CERTIFICATE_REVOKED": "it was revoked",
    "ALERT_UNSUPPORTED_CERTIFICATE": "it is of a kind that is not for clients",
    "ALERT_BAD_CERTIFICATE": "it is damaged, or not signed by whom it names",
    "ALERT_CERTIFICATE_UNKNOWN": "it cannot be verified",
    "ALERT_ACCESS_DENIED": "its owner may not use this service",
}
_NO_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER", "PACKET_LENGTH_TOO_LONG")
_EXPIRED, _NOT_YET, _OTHER_HOST = (10,), (9,), (62, 64)  # X509_V_ERR_…


@dataclass(slots=True)
class ClientTls:
    """TLS of a client: `ca`, a file of the certificates that it trusts, or the machine's; and its
    own `cert` and `key`, which may be in the same file. Thread-safe."""

    ca: str = ""
    cert: str = ""
    key: str = ""
    _context: "ssl.SSLContext | None" = field(default=None, init=False, repr=False, compare=False)
    _stamp: FilesVersion = field(default=(), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.key and not self.cert:
            raise ConfigError(
                f"The key {self.key} is given without its certificate: give both (cert, --cert, "
                "TMS_CERT)."
            )

    def __reduce__(self) -> tuple[type[Self], tuple[str, str, str]]:
        return type(self), (self.ca, self.cert, self.key)  # works where the same files exist

    @classmethod
    def of(
        cls,
        ca: PathText | None,
        cert: PathText | tuple[PathText, PathText] | None,
        environ: Mapping[str, str] = os.environ,
    ) -> Self:
        """The arguments, or else TMS_CA, TMS_CERT and TMS_KEY. Raises `Invalid`, `ConfigError`."""
        own: tuple[Any, ...] = cert if isinstance(cert, tuple) else (cert, None)
        if not _is_path(ca) or len(own) != 2 or not all(map(_is_path, own)):
            raise Invalid(
                "ca is the path of a file, cert one or (certificate, key), got "
                f"ca={ca!r:.100}, cert={cert!r:.200}.",
                field="cert" if _is_path(ca) else "ca",
            )
        if cert is None:
            own = environ.get("TMS_CERT"), environ.get("TMS_KEY")
        trusted = environ.get("TMS_CA") if ca is None else ca
        files = [os.fspath(path or "") for path in (trusted, *own)]
        return cls(files[0], files[1], files[2])

    def check(self, urls: str) -> None:
        """Raise `ConfigError` for files that cannot be used."""
        if (self.ca or self.cert) and "https://" in urls:
            self.context()

    def context(self) -> "ssl.SSLContext":
        """The context of the next connection. Raises `ConfigError`."""
        stamp = stamp_of((self.ca, self.cert, self.key))
        if self._context is None or stamp != self._stamp:
            try:
                made = self._made()
            except ConfigError:
                if self._context is None:
                    raise
            else:
                self._context = made
                self._stamp = stamp
        return self._context

    def _made(self) -> "ssl.SSLContext":
        import ssl

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.ca:
            _load_ca(context, self.ca, "CA (ca, --ca, TMS_CA)")
        else:
            context.load_default_certs()
        if self.cert:
            _load_own(context, self.cert, self.key, "client certificate (cert, --cert, TMS_CERT)")
        return context


def _is_path(value: object) -> bool:
    return value is None or isinstance(value, str | os.PathLike)


@dataclass(frozen=True, slots=True)
class ServerTls:
    """TLS of a service: its certificate, its key, which may be in the same file, and the CAs of
    clients: without any, no client is asked for a certificate."""

    cert: str
    key: str = ""
    client_ca: str = ""
    required: bool = True  # True if every client needs a certificate

    def stamp(self) -> FilesVersion:
        """A value that changes with the files."""
        return stamp_of((self.cert, self.key, self.client_ca))

    def context(self) -> "ssl.SSLContext":
        """A context from the present files. Raises `ConfigError`."""
        import ssl

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        context.set_alpn_protocols(["http/1.1"])
        _load_own(context, self.cert, self.key, "certificate of the service (tls.cert)")
        if self.client_ca:
            _load_ca(context, self.client_ca, "CA of clients (tls.client_ca)")
            context.verify_mode = ssl.CERT_REQUIRED if self.required else ssl.CERT_OPTIONAL
            context.options |= ssl.OP_NO_TICKET  # every connection is verified
            context.num_tickets = 0
        return context


def stamp_of(files: Iterable[str]) -> FilesVersion:
    """A value that differs once one of these files was replaced or written to."""
    stamps = []
    for file in files:
        try:
            said = os.stat(file)
        except OSError:
            stamps.append((0, 0, 0))
        else:
            stamps.append((said.st_mtime_ns, said.st_ino, said.st_size))
    return tuple(stamps)


def _load_ca(context: "ssl.SSLContext", file: str, what: str) -> None:
    import ssl

    try:
        context.load_verify_locations(cafile=file)
    except ssl.SSLError as exc:
        raise ConfigError(f"The {what} {file} holds no certificate in PEM ({exc.reason}).") from exc
    except OSError as exc:
        raise ConfigError(f"The {what} {file} cannot be read: {exc.strerror}.") from exc


def _load_own(context: "ssl.SSLContext", cert: str, key: str, what: str) -> None:
    import ssl

    def password() -> str:
        raise ConfigError(
            f"The key {key or cert} of the {what} is encrypted with a password: give a key without "
            "one (openssl pkey -in KEY -out PLAIN), readable by this user only."
        )

    for file in filter(None, (cert, key)):
        if not os.access(file, os.R_OK):
            raise ConfigError(
                f"The file {file} of the {what} "
                f"{'cannot be read by this user' if os.path.exists(file) else 'is not there'}."
            )
    try:
        context.load_cert_chain(cert, key or None, password)
    except ssl.SSLError as exc:
        if exc.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(
                f"The key {key or cert} is not that of the {what} {cert}; give the one with which "
                "it was requested."
            ) from exc
        raise ConfigError(
            f"The {what} cannot be used: {cert} and {key or 'it'} must hold a certificate, with "
            f"those that lead to its CA, and its private key, in PEM ({exc.reason or exc})."
        ) from exc
    except OSError as exc:
        raise ConfigError(f"The {what} {cert} cannot be read: {exc.strerror}.") from exc


class TlsFault(ConfigError):
    """A fault of TLS with a service that an administrator has to correct. `no_tls`: the other side
    has no TLS."""

    no_tls = False


def fault_of(error: BaseException, url: str) -> TlsFault | None:
    """The fault that keeps TLS with `url` from working; None if this error has another cause."""
    code = getattr(error, "verify_code", None)
    if code is not None:
        why = getattr(error, "verify_message", "").rstrip(".")
        if code in _EXPIRED:
            return TlsFault(
                f"The certificate of {url} is not trusted: it has expired. Renew it there; a "
                "service takes new files without a restart."
            )
        if code in _NOT_YET:
            return TlsFault(
                f"The certificate of {url} is not trusted: it is not valid yet. Compare the clocks "
                "of both machines."
            )
        if code in _OTHER_HOST:
            return TlsFault(
                f"The certificate of {url} is not trusted: it is of another host ({why}). Use a "
                "name that is in it, or issue one that has this name."
            )
        return TlsFault(
            f"The certificate of {url} is not trusted: {why}. Name the CA that signed it with "
            "ca=, --ca or TMS_CA."
        )
    reason = getattr(error, "reason", None) or ""
    if not isinstance(reason, str):
        return None
    if any(sign in reason for sign in _NO_TLS):
        fault = TlsFault(f"{url} does not speak TLS; write http:// instead of https://.")
        fault.no_tls = True
        return fault
    if "CERTIFICATE_REQUIRED" in reason:
        return TlsFault(
            f"{url} asks for a client certificate, and none was given. Give one with cert=, --cert "
            "and --key, or TMS_CERT and TMS_KEY."
        )
    for alert, why in _REFUSED.items():
        if alert in reason:
            return TlsFault(f"{url} refuses the client certificate: {why}.")
    if "HANDSHAKE_FAILURE" in reason:
        return TlsFault(
            f"{url} refuses the TLS handshake. It may ask for a client certificate (cert=, --cert, "
            "TMS_CERT), or for ciphers that this client does not have."
        )
    if "PROTOCOL_VERSION" in reason or "UNSUPPORTED_PROTOCOL" in reason:
        return TlsFault(f"{url} speaks neither TLS 1.2 nor 1.3; TMS speaks nothing older.")
    return None


def certificate_name(certificate: Mapping[str, Any] | None) -> str | None:
    """The name in a certificate, as `ssl` decodes it: the common name of its subject, the last if
    there are several, else its first DNS name. None without one, and if that name cannot be
    printed: another name of the certificate never replaces it."""
    if not certificate:
        return None
    subject = [name for parts in certificate.get("subject", ()) for name in parts]
    common = [value for kind, value in subject if kind == "commonName"]
    others = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS"]
    name = next(filter(None, (*common[-1:], *others)), "")
    return name if name and name.isprintable() else None
