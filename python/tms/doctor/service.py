"""Checks of the service at a URL: is it there, is it TMS, is it ready, does it agree on version and
time."""

from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

from tms.doctor.finding import Finding, ok, problem, warning
from tms.doctor.machine import Machine
from tms.doctor.probe import Probed, Who, ask
from tms.tls import ClientTls

TIMEOUT_S = 3.0
_SKEW_S = 5
_SLOW_MS = 50
_LOOPBACK = ("localhost", "::1")


def check(
    url: str, meant: bool, machine: Machine, tls: ClientTls | None = None
) -> Iterator[Finding]:
    """All checks of the service at `url`; that it does not run is a problem only if it was
    `meant`."""
    yield _encryption(url)
    yield _path(url)
    began_s = machine.clock.monotonic_s()
    answer = ask(url, "/", TIMEOUT_S, tls)
    took_ms = (machine.clock.monotonic_s() - began_s) * 1000
    if answer.who is Who.REFUSED and not meant:
        yield ok("service", f"{answer.found} (Not needed with --data.)")
        return
    if answer.who is not Who.TMS:
        yield problem("service", answer.found, answer.next)
        return
    yield ok("service", answer.found)
    yield _version(answer)
    yield _ready(url, tls)
    yield _skew(answer, machine)
    if took_ms > _SLOW_MS:
        yield warning("round trip", f"an answer takes {took_ms:.0f} ms")
    else:
        yield ok("round trip", f"{took_ms:.1f} ms")


def _encryption(url: str) -> Finding:
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme == "http" and host not in _LOOPBACK and not host.startswith("127."):
        return warning("encryption", f"messages cross the network to {host} in clear text")
    return ok("encryption", "not needed on one machine" if parts.scheme == "http" else "TLS")


def _path(url: str) -> Finding:
    path = urlsplit(url).path
    if path not in ("", "/"):
        return warning("URL", f"{url} has a path", f"leave {path} out: TMS adds its own")
    return ok("URL", url)


def _version(answer: Probed) -> Finding:
    from tms import __version__

    theirs = answer.body.get("version") if isinstance(answer.body, dict) else None
    if theirs != __version__:
        return warning("version of the service", f"it has {theirs}, this is {__version__}")
    return ok("version of the service", __version__)


def _ready(url: str, tls: ClientTls | None) -> Finding:
    answer = ask(url.rstrip("/"), "/readyz", TIMEOUT_S, tls)
    reasons = answer.body.get("reasons") if isinstance(answer.body, dict) else None
    if answer.who is not Who.TMS:
        return problem("readiness", answer.found, answer.next)
    if reasons:
        return problem(
            "readiness", "; ".join(map(str, reasons)), "mend that; the service goes on by itself"
        )
    warnings = answer.body.get("warnings") if isinstance(answer.body, dict) else None
    if warnings:
        return warning("readiness", " ".join(map(str, warnings)), "do what each warning says")
    return ok("readiness", "ready")


def _skew(answer: Probed, machine: Machine) -> Finding:
    try:
        theirs_ms = parsedate_to_datetime(answer.headers["date"]).timestamp() * 1000
    except (KeyError, ValueError):
        return ok("clocks", "the service does not tell its time")
    skew_s = (machine.clock.now_ms() - theirs_ms) / 1000
    if abs(skew_s) > _SKEW_S:
        ahead = "ahead of" if skew_s > 0 else "behind"
        found = f"this machine is {abs(skew_s):,.0f} s {ahead} the service, which times the ids"
        return warning("clocks", found)
    return ok("clocks", "agree with the service")
