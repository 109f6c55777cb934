"""Certificates that are renewed while the service runs, and their settings."""

import signal
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import tms
from tests.faults.service import Service, within
from tests.http_kit import serving
from tests.run_seed import drawn
from tests.tls_kit import Authority, Certificate
from tests.waiting import PATIENCE_S
from tms.errors import ConfigError
from tms.runtime.tls import ServerTls, certificate_name
from tms.serve.config_sources import load
from tms.server import certificates
from tms.server.certificates import Certificates

# Keys that protect nothing, the second one with a password.
OTHER_KEY = b"""\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgPa4oGqvXIDLoAARj
Jk4jMgIVv9OjnPcBKr8WSWDx6xWhRANCAARX8BYf73DlgBVI4uYWnNyX+eFW8Qi7
wKgPPIirOyAspX8nt2WpamLxqpFSmYUt6NN2tCexIYpsTz+feb1zbQ2K
-----END PRIVATE KEY-----
"""
LOCKED_KEY = b"""\
-----BEGIN ENCRYPTED PRIVATE KEY-----
MIHsMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAgRBHcIdTL7dAICCAAw
DAYIKoZIhvcNAgkFADAdBglghkgBZQMEASoEEP94CwTynsy5YqbYS2oCK7kEgZBI
VRjI93ddvOS5WZKo1BbJbIZT9yZqdgK0GvoU54vb/AnE5Vv8ugwVOaK9anzM+XfP
6nTbmz8Sbepz1qV6y+Z70XSsh5MujR6c0WPsAnIxoKbt2nJYuHmgOh9s29751MvE
L+utkJnAu5EEFBhViJeS5kSmALQR3BrLJF5ScxGCVGNoJgZ9YPLNS1ZA3Z1Ey2Q=
-----END ENCRYPTED PRIVATE KEY-----
"""


@pytest.fixture
def certificate(authority: Authority, tmp_path: Path) -> Certificate:
    """A certificate whose files a test may change."""
    mine = Certificate(tmp_path / "tls.pem", tmp_path / "tls.key")
    mine.replace(authority.sign("first"))
    return mine


def shown(address: tuple[str, int], ca: Path, own: Certificate | None = None) -> str | None:
    """The common name of the certificate that the service shows."""
    context = ssl.create_default_context(cafile=ca)
    if own is not None:
        context.load_cert_chain(*own.pair)
    raw = socket.create_connection(address, 10)
    with context.wrap_socket(raw, server_hostname="127.0.0.1") as connection:
        return certificate_name(connection.getpeercert())


def test_a_renewed_certificate_is_shown_under_load_and_no_request_fails(
    authority: Authority, certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "LOOK_S", 0.02)
    with serving(tls=ServerTls(*certificate.pair)) as served:
        url = "https://{}:{}".format(*served.address)
        stop, published, failures = threading.Event(), [0], []

        def load() -> None:
            while not stop.is_set():
                try:  # the first has connections of its own each time
                    with tms.connect(url, ca=authority.ca) as bus:
                        bus.publish("t", b"x")
                    kept.publish("t", b"x")
                    published[0] += 2
                except tms.TMSError as error:
                    failures.append(error)
                    return

        with tms.connect(url, ca=authority.ca) as kept:
            kept.create_topic("t")
            thread = threading.Thread(target=load)
            thread.start()
            for name in ("second", "third", "fourth"):
                certificate.replace(authority.sign(name))
                within(PATIENCE_S, lambda name=name: shown(served.address, authority.ca) == name)
            stop.set()
            thread.join()
            assert not failures
            assert published[0] > 0
            assert len(list(kept.consumer("t", stop_at_end=True))) == published[0]


def test_files_that_cannot_be_used_keep_the_certificate_and_are_told_of_once(
    authority: Authority,
    certificate: Certificate,
    caplog: pytest.LogCaptureFixture,
) -> None:
    kept = Certificates(ServerTls(*certificate.pair, str(authority.ca)))
    first = kept.newest()
    good = certificate.cert.read_bytes()
    for broken in (b"", b"no certificate", good[:100], authority.sign("other").cert.read_bytes()):
        caplog.clear()
        certificate.cert.write_bytes(broken)
        for _ in range(3):
            kept.look()
        assert kept.newest() is first
        [record] = caplog.records
        assert "certificate_not_reloaded" in record.getMessage()
    certificate.cert.unlink()
    kept.look()
    assert kept.newest() is first
    certificate.cert.write_bytes(good)
    kept.look()
    assert kept.newest() is not first


def test_a_look_that_was_asked_for_reads_files_that_look_the_same(
    certificate: Certificate,
) -> None:
    kept = Certificates(ServerTls(*certificate.pair))
    first = kept.newest()
    kept.look()
    assert kept.newest() is first
    kept.look(asked=True)
    assert kept.newest() is not first


def test_a_ca_that_is_taken_back_lets_nobody_in_any_more(
    authority: Authority,
    certificate: Certificate,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(certificates, "LOOK_S", 0.02)
    ca = tmp_path / "clients.pem"
    ca.write_bytes(authority.ca.read_bytes())
    alice = authority.sign("alice")
    with serving(tls=ServerTls(*certificate.pair, str(ca))) as served:
        url = "https://{}:{}".format(*served.address)

        def gets_in() -> bool:
            with tms.connect(url, ca=authority.ca, cert=alice.pair, timeout_s=5) as bus:
                try:
                    next(bus.list_topics(), None)
                except ConfigError as error:
                    assert "does not trust the CA" in str(error)
                    return False
                return True

        assert gets_in()
        ca.write_bytes(Authority(tmp_path, "others").ca.read_bytes())
        within(PATIENCE_S, lambda: not gets_in())


@pytest.mark.timeout(300)
@pytest.mark.parametrize("workers", drawn("workers and certificates", [1, 2], 1))
def test_the_process_reloads_at_sighup_and_by_itself(
    authority: Authority, certificate: Certificate, tmp_path: Path, workers: int
) -> None:
    cert, key = certificate.pair
    flags = ["--tls-cert", cert, "--tls-key", key, "--workers", str(workers)]
    flags += ["--tls-ca", str(authority.ca), "--tls-client-ca", str(authority.ca)]
    own = authority.sign("alice")
    with Service(tmp_path / "data", *flags) as service:
        assert service.url.startswith("https://")
        within(
            PATIENCE_S, lambda: len(service.events("ready")) == workers
        )  # with the first certificate
        address = ("127.0.0.1", int(service.url.rpartition(":")[2]))
        with tms.connect(service.url, ca=authority.ca, cert=own.pair) as bus:
            bus.create_topic("t", partitions=4)
            for number in range(20):
                bus.publish("t", b"x", partition=number % 4)
            assert len(list(bus.consumer("t", stop_at_end=True))) == 20

        def names() -> set[str | None]:
            return {shown(address, authority.ca, own) for _ in range(8)}  # of all workers, likely

        assert names() == {"first"}
        certificate.replace(authority.sign("second"))
        within(PATIENCE_S, lambda: len(service.events("certificate_reloaded")) == workers)
        assert names() == {"second"}
        service.signal(signal.SIGHUP)
        within(PATIENCE_S, lambda: len(service.events("certificate_reloaded")) == 2 * workers)
        certificate.key.write_text("broken")
        service.signal(signal.SIGHUP)
        within(PATIENCE_S, lambda: len(service.events("certificate_not_reloaded")) >= workers)
        assert names() == {"second"}
        assert service.stop() == 0


def _faults(**settings: object) -> str:
    with pytest.raises(ConfigError) as caught:
        load(None, {"data": "d", **{f"tls.{name}": value for name, value in settings.items()}})
    return caught.value.message


def test_settings_that_mean_nothing_without_others_are_refused() -> None:
    assert "--tls-cert" in _faults(key="k")
    assert "--tls-cert" in _faults(client_ca="c")
    assert "--tls-client-ca" in _faults(cert="c", client_auth="required")
    assert load(None, {"data": "d", "tls.cert": "c"}).tls.own() == ServerTls("c")
    asked = load(None, {"data": "d", "tls.cert": "c", "tls.client_ca": "a"}).tls.own()
    assert asked is not None
    assert asked.required
    assert load(None, {"data": "d"}).tls.own() is None


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda made: made.cert.unlink(), "is not there"),
        (lambda made: made.cert.write_text("x"), "in PEM"),
        (lambda made: made.key.write_text("x"), "in PEM"),
        (lambda made: made.key.write_bytes(OTHER_KEY), "is not that of"),
        (lambda made: made.key.write_bytes(LOCKED_KEY), "password"),
    ],
)
def test_files_that_cannot_be_used_are_a_fault_of_the_configuration(
    certificate: Certificate, spoil: Callable[[Certificate], object], said: str
) -> None:
    spoil(certificate)
    with pytest.raises(ConfigError, match=said):
        ServerTls(*certificate.pair).context()


def test_a_ca_that_cannot_be_used_is_a_fault_of_the_configuration(
    certificate: Certificate, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        ServerTls(*certificate.pair, str(tmp_path / "none")).context()
    (tmp_path / "empty").write_text("")
    with pytest.raises(ConfigError, match="no certificate"):
        ServerTls(*certificate.pair, str(tmp_path / "empty")).context()
