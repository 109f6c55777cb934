"""Commands talk to a service over TLS, and name the fault of a certificate."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.http_kit import Served, serving
from tests.tls_kit import Authority, Certificate
from tms.runtime.tls import ServerTls

TMS = (sys.executable, "-c", "from tms.cli.main import main; main()")


@pytest.fixture(scope="module")
def own(authority: Authority) -> Certificate:
    return authority.sign("alice")


@pytest.fixture(scope="module")
def served(authority: Authority) -> Iterator[Served]:
    with serving(tls=ServerTls(*authority.sign().pair, str(authority.ca))) as running:
        yield running


def tms(*arguments: object, code: int = 0, **environ: object) -> str:
    """The output of a command, or its error output if it ends with another code."""
    done = subprocess.run(
        [*TMS, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PYTHONPATH": ":".join(sys.path), **{name: str(it) for name, it in environ.items()}},
    )
    assert done.returncode == code, done
    return done.stderr if code else done.stdout


def test_files_are_typed_or_in_the_environment(
    served: Served, authority: Authority, own: Certificate
) -> None:
    url = "https://{}:{}".format(*served.address)
    typed = ("--url", url, "--ca", authority.ca, "--cert", own.cert, "--key", own.key)
    tms("topic", "create", "t", *typed)
    named = {"TMS_URL": url, "TMS_CA": authority.ca, "TMS_CERT": own.cert, "TMS_KEY": own.key}
    assert [one["topic"] for one in json.loads(tms("topic", "list", "--json", **named))] == ["t"]
    assert "problem" not in tms("doctor", "--all", **named).partition("service")[2]


def test_what_is_wrong_with_a_certificate_is_said_with_exit_code_78(
    served: Served, authority: Authority, own: Certificate, tmp_path: Path
) -> None:
    url = "https://{}:{}".format(*served.address)
    list_ = ("topic", "list", "--url", url)
    assert "not trusted" in tms(*list_, code=78)
    assert "none was given" in tms(*list_, "--ca", authority.ca, code=78)
    assert "without its certificate" in tms(*list_, "--key", own.key, code=78)
    assert "is not there" in tms(*list_, "--ca", authority.ca, "--cert", tmp_path / "no", code=78)
    plain = url.replace("https", "http")
    assert "https://" in tms("topic", "list", "--url", plain, code=78)
    with serving() as other:
        wrong = "https://{}:{}".format(*other.address)
        assert "http://" in tms("topic", "list", "--url", wrong, code=78)


def test_serve_says_which_flags_it_takes_and_which_files_are_wrong(
    authority: Authority, own: Certificate, tmp_path: Path
) -> None:
    serve = ("serve", "--data", tmp_path / "data", "--port", "0")
    assert "--tls-cert" in tms(*serve, "--cert", own.cert, code=2)
    assert "is not there" in tms(*serve, "--tls-cert", tmp_path / "none", code=78)
    other = authority.sign("bob")
    said = tms(*serve, "--tls-cert", own.cert, "--tls-key", other.key, code=78)
    assert "is not that of" in said
    assert not (tmp_path / "data").exists()
