"""Access control as users meet it: a service on a network, its first administrator, commands, and
its files. A secret exists only where it was made."""

import json
import os
import re
import urllib.request
from collections.abc import Mapping
from pathlib import Path

import pytest

import tms
from tests.cli_kit import Ended, tms_command
from tests.faults.service import Service
from tests.jwt_kit import AUDIENCE, ISSUER, JwksServer, claims, jwks, key_of, sign
from tests.run_seed import drawn
from tms.cli.access import close_new_file
from tms.errors import Forbidden, Unauthenticated

FIRST = re.compile(r"TMS_TOKEN=(tms_\w+) tms token create NAME")


def run(
    service: Service, *words: str, token: str = "", env: Mapping[str, str] | None = None
) -> Ended:
    """Run a command at the service."""
    given = {"TMS_URL": service.url, **({"TMS_TOKEN": token} if token else {}), **(env or {})}
    return tms_command(*words, env=given)


def first_token(service: Service) -> str:
    [found] = [match[1] for line in service.lines if (match := FIRST.search(line))]
    return found


def test_from_the_first_administrator_to_a_program_with_two_grants(tmp_path: Path) -> None:
    data = tmp_path / "data"
    secrets: list[str] = []
    with Service(data, "--host", "0.0.0.0", "--audit", "all") as service:
        denied = run(service, "topic", "list")
        assert denied.returncode == 5 and "--token-file" in denied.stderr
        first = first_token(service)
        made = run(service, "token", "create", "ann", token=first)
        assert made.returncode == 0, made.stderr
        ann = made.stdout.strip()
        assert run(service, "token", "create", "eve", token=first).returncode == 5
        file = tmp_path / "shop.token"
        file.write_text(
            run(service, "token", "create", "shop", "--expires", "90d", token=ann).stdout
        )
        secrets += [ann, file.read_text().strip()]
        for words in (
            ("topic", "create", "orders"),
            ("grant", "add", "shop", "publish", "topic:orders"),
            ("grant", "add", "shop", "consume", "topic:orders"),
        ):
            done = run(service, *words, token=ann)
            assert done.returncode == 0, done.stderr
        with tms.connect(service.url, token=secrets[1]) as bus:
            bus.publish("orders", b"1")
            assert [one.value for one in bus.consumer("orders", stop_at_end=True)] == [b"1"]
            with pytest.raises(Forbidden):
                bus.create_topic("other")
        by_file = {"TMS_TOKEN_FILE": str(file)}
        assert "You are shop." in run(service, "access", "whoami", env=by_file).stderr
        named = run(service, "--token-file", str(file), "topic", "create", "other")
        assert named.returncode == 5
        explained = run(service, "access", "explain", "shop", "manage", "topic:x", token=ann)
        assert "no grant covers it" in explained.stdout
        tokens = json.loads(run(service, "token", "list", "--json", token=ann).stdout)
        assert {one["principal"] for one in tokens} == {"ann", "shop"}
        [id] = [one["id"] for one in tokens if one["principal"] == "shop"]
        assert run(service, "token", "revoke", id, token=ann).returncode == 0
        with tms.connect(service.url, token=secrets[1]) as bus, pytest.raises(Unauthenticated):
            bus.publish("orders", b"2")
        assert service.stop() == 0
    with Service(data, "--host", "0.0.0.0") as service:
        assert not any(FIRST.search(line) for line in service.lines)
        assert run(service, "topic", "list", token=ann).returncode == 0
    _look_for(secrets, service.lines, data)


@pytest.mark.parametrize(("before", "mode"), [("", 0o600), ("others' lines", 0o644)])
def test_a_token_goes_to_a_file_that_other_users_cannot_read(
    before: str, mode: int, tmp_path: Path
) -> None:
    """A file that was there before keeps its mode."""
    file = tmp_path / "a.token"
    file.write_text(before)
    file.chmod(0o644)
    with file.open("a") as out:
        close_new_file(out.fileno())
    assert file.stat().st_mode & 0o777 == mode
    reading, writing = os.pipe()
    close_new_file(writing)
    os.close(reading)
    os.close(writing)


EXAMPLES = ("README.md", "docs", "docker", "examples", "python/tms")


def test_no_example_puts_a_token_into_arguments() -> None:
    """Every user of a machine sees the arguments of commands."""
    wrong = re.compile(r"(?:-e|--env|\benv)[ =]TMS_TOKEN=|--token[ =]tms_")
    root = Path(__file__).parents[3]
    files = [path for name in EXAMPLES for path in (root / name, *(root / name).rglob("*"))]
    texts = {path: path.read_bytes().decode(errors="replace") for path in files if path.is_file()}
    assert [str(path) for path, text in texts.items() if wrong.search(text)] == []


def test_every_decision_is_written_down_without_a_secret(tmp_path: Path) -> None:
    with Service(tmp_path / "data", "--access", "on", "--audit", "all") as service:
        admin = run(service, "token", "create", "ann", token=first_token(service)).stdout.strip()
        with tms.connect(service.url, token=admin) as bus:
            bus.create_topic("orders")
            bus.publish("orders", b"secret value")
            token = bus.admin.access.create_token("shop").token
        with tms.connect(service.url, token=token) as bus, pytest.raises(Forbidden):
            bus.publish("orders", b"x")
        with tms.connect(service.url, token="tms_wrong") as bus, pytest.raises(Unauthenticated):
            bus.publish("orders", b"x")
        service.stop()
    audit = [json.loads(line) for line in service.lines if '"access_' in line]
    said = [
        (one["event"], one["principal"], one["operation"], one.get("resource")) for one in audit
    ]
    orders = "topic:default:orders"
    assert ("access_allowed", "ann", "topics.create_topic", orders) in said
    assert ("access_allowed", "ann", "publish", orders) in said
    assert ("access_allowed", "ann", "access.create_token", "access") in said
    assert ("access_denied", "shop", "topics.describe_topic", orders) in said
    assert ("access_changed", "ann", "access.create_token", None) in said
    assert "wrong token" in [one["why"] for one in audit if one["event"] == "access_refused"]
    assert all(one["request_id"] and one["address"] == "127.0.0.1" for one in audit)
    _look_for([admin, token, "tms_wrong", "secret value"], service.lines, None)


def test_a_service_that_others_reach_is_guarded_unless_somebody_says_otherwise(
    tmp_path: Path,
) -> None:
    with Service(tmp_path / "data", "--host", "0.0.0.0", "--access", "off", wait=False) as service:
        assert service.wait() == 78
    assert any("--insecure" in line for line in service.lines)
    with Service(tmp_path / "data", "--host", "0.0.0.0", "--insecure") as service:
        answer = json.loads(get(service, "/readyz"))
        assert "Everybody who reaches 0.0.0.0 may do everything" in answer["warnings"][0]
        assert run(service, "topic", "create", "orders").returncode == 0


def test_a_new_administrator_can_be_made_when_the_token_is_lost(tmp_path: Path) -> None:
    with Service(tmp_path / "data", "--access", "on") as service:
        assert run(service, "token", "create", "ann", token=first_token(service)).returncode == 0
        service.stop()
    with Service(tmp_path / "data", "--access", "on", "--new-administrator") as service:
        made = run(service, "token", "create", "bea", token=first_token(service))
        assert made.returncode == 0, made.stderr
        shown = run(service, "grant", "list", token=made.stdout.strip())
        assert "bea" in shown.stdout and "ann" in shown.stdout


def test_workers_ask_the_same_and_know_of_each_change(tmp_path: Path) -> None:
    with Service(tmp_path / "data", "--access", "on", "--workers", "2") as service:
        admin = run(service, "token", "create", "ann", token=first_token(service)).stdout.strip()
        with tms.connect(service.url, token=admin) as bus:
            bus.create_topic("orders", partitions=8)
            token = bus.admin.access.create_token("shop")
            bus.admin.access.add_grant("shop", "publish", "topic:orders")
            with tms.connect(service.url, token=token.token) as shop:
                for partition in range(8):
                    shop.publish("orders", b"x", partition=partition)
            bus.admin.access.revoke_token(token.id)
        for _ in range(8):  # connections that one worker takes, or the other
            with tms.connect(service.url, token=token.token) as bus, pytest.raises(Unauthenticated):
                bus.admin.access.whoami()


def get(service: Service, path: str) -> bytes:
    with urllib.request.urlopen(f"{service.url}{path}", timeout=10) as answer:
        body: bytes = answer.read()
    return body


def _look_for(secrets: list[str], lines: list[str], data: Path | None) -> None:
    """Check that no secret is in the log or in the data directory."""
    for secret in secrets:
        assert not any(secret in line for line in lines)
        for file in [] if data is None else [one for one in data.rglob("*") if one.is_file()]:
            assert secret.encode() not in file.read_bytes(), file


@pytest.mark.parametrize("workers", drawn("workers and tokens of an issuer", ["1", "2"], 1))
def test_tokens_of_an_issuer_are_believed_by_a_service(tmp_path: Path, workers: str) -> None:
    key = key_of("RS256")
    keys = tmp_path / "keys.json"
    keys.write_bytes(jwks(key))
    flags = ("--access", "on", "--workers", workers, "--jwt-jwks", str(keys))
    named = ("--jwt-issuer", ISSUER, "--jwt-audience", AUDIENCE, "--jwt-principal", "email")
    with Service(tmp_path / "data", *flags, *named) as service:
        admin = run(service, "token", "create", "ann", token=first_token(service)).stdout.strip()
        shop = sign(key, claims("7", email="shop@b.c"), "RS256")
        with tms.connect(service.url, token=admin) as bus:
            bus.create_topic("orders", partitions=4)
            bus.admin.access.add_grant("shop@b.c", "publish", "topic:orders")
        for _ in range(4):  # connections that one worker takes, or the other
            with tms.connect(service.url, token=shop) as bus:
                for partition in range(4):
                    bus.publish("orders", b"x", partition=partition)
                with pytest.raises(Forbidden):
                    bus.create_topic("other")
        assert "You are shop@b.c." in run(service, "access", "whoami", token=shop).stderr
        other = sign(key, claims("7", email="shop@b.c", aud="other"), "RS256")
        refused = run(service, "topic", "list", token=other)
        assert refused.returncode == 5 and "audience" in refused.stderr
        service.stop()
    _look_for([shop, other], service.lines, tmp_path / "data")


def test_a_service_whose_issuer_is_away_starts_and_says_so(tmp_path: Path) -> None:
    with JwksServer() as gone:
        url = gone.url
    flags = ("--jwt-jwks", url, "--jwt-issuer", ISSUER, "--jwt-audience", AUDIENCE)
    with Service(tmp_path / "data", "--access", "on", *flags) as service:
        admin = run(service, "token", "create", "ann", token=first_token(service)).stdout.strip()
        assert run(service, "topic", "list", token=admin).returncode == 0
        [warning] = json.loads(get(service, "/readyz"))["warnings"]
        assert "No JWT is accepted" in warning and url not in warning
        service.stop()
    assert any("jwks_not_fetched" in line and url in line for line in service.lines)
