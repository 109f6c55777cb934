"""Checks of the service at a URL: whether TMS answers, is ready, has this version and this time."""

from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

from tms.cli.checks.finding import Finding, ok, problem, warning
from tms.cli.checks.machine import Machine
from tms.cli.checks.probe import Probed, Who, ask
from tms.runtime.tls import ClientTls

TIMEOUT_S = 3.0
_SKEW_S = 5
_LOOPBACK = ("localhost", "::1")


def check(
    url: str, meant: bool, machine: Machine, tls: ClientTls | None = None
) -> Iterator[Finding]:
    """All checks of the service at `url`. A service that does not run is a problem only if the
    user named it (`meant`)."""
    yield from _address(url)
    answer = ask(url, "/", TIMEOUT_S, tls)
    if answer.who is Who.REFUSED and not meant:
        yield ok("service", f"{answer.found} (Not needed with --data.)")
    elif answer.who is not Who.TMS:
        yield problem("service", answer.found, answer.next)
    else:
        yield ok("service", answer.found)
        yield _version(answer)
        yield _ready(url, tls)
        yield _skew(answer, machine)


def _address(url: str) -> Iterator[Finding]:
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme == "http" and host not in _LOOPBACK and not host.startswith("127."):
        found = f"messages cross the network to {host} in clear text"
        yield warning("encryption", found, "give the service a certificate, and use https://")
    if parts.path not in ("", "/"):
        fix = f"leave {parts.path} out: TMS adds its own"
        yield warning("URL", f"{url} has a path", fix)
    else:
        yield ok("URL", url)


def _version(answer: Probed) -> Finding:
    from tms.runtime.version import VERSION

    theirs = answer.body.get("version") if isinstance(answer.body, dict) else None
    if theirs != VERSION:
        found = f"it has {theirs}, this is {VERSION}"
        return warning("version of the service", found, "install the same version on both sides")
    return ok("version of the service", VERSION)


def _ready(url: str, tls: ClientTls | None) -> Finding:
    answer = ask(url.rstrip("/"), "/readyz", TIMEOUT_S, tls)
    if answer.who is not Who.TMS or not isinstance(answer.body, dict):
        return problem("readiness", answer.found, answer.next)
    if reasons := answer.body.get("reasons"):
        fix = "mend that; the service continues by itself"
        return problem("readiness", "; ".join(map(str, reasons)), fix)
    if warnings := answer.body.get("warnings"):
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
        return warning("clocks", found, "let chrony or systemd-timesyncd keep both clocks")
    return ok("clocks", "agree with the service")
