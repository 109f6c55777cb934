"""A service on a network, called from another machine: nothing answers without a token, and each
verb is denied without its grant. Operations and verbs come from the tables, so that none can be
forgotten."""

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import tms
from tests.access.test_access_process import first_token
from tests.access.test_guard import DENIED, GUARDED, ids
from tests.access_kit import path_of
from tests.faults.service import Service
from tests.http_kit import Answer, Client
from tests.network_kit import ELSEWHERE, Network, two_machines
from tms.api.operation import Operation, Resource
from tms.api.operations import OPERATIONS
from tms.model.access import VERBS, Access

GRANTED = [verb for verb in VERBS if verb is not Access.ALL]
OPEN_PATHS = {"/", "/livez", "/readyz", "/openapi.json", "/startupz"}  # docs/security.md says so


@dataclass(frozen=True)
class Guarded:
    """A service and the tokens of principals: one has no grant, the others a verb each."""

    service: Service
    network: Network
    nothing: str
    only: dict[Access, str]

    def ask(self, operation: Operation, token: str = "") -> Answer:
        body = b"{}" if operation.method in ("POST", "PUT", "PATCH") else None
        return self.request(operation.method, path_of(operation), body, token)

    def request(self, method: str, path: str, body: bytes | None, token: str = "") -> Answer:
        headers = {"Authorization": f"Bearer {token}"} if token else {}

        def ask() -> Answer:
            with Client(self.service.address) as client:
                return client.request(method, path, body, **headers)

        return self.network.from_elsewhere(ask)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    flags = ("--tephra-port", "0", "--audit", "all")
    data: Path = tmp_path_factory.mktemp("guarded") / "data"
    with (
        two_machines() as network,
        Service(data, "--host", network.host, *flags, before_exec=network.enter_service) as service,
    ):

        def make() -> tuple[str, dict[Access, str]]:
            with tms.connect(service.url, token=first_token(service)) as bus:
                admin = bus.admin.access.create_token("ann").token
            with tms.connect(service.url, token=admin) as bus:
                for verb in GRANTED:
                    bus.admin.access.add_grant(f"only-{verb}", str(verb), "*")
                made = {one: bus.admin.access.create_token(f"only-{one}").token for one in GRANTED}
                return bus.admin.access.create_token("nobody").token, made

        yield Guarded(service, network, *network.from_elsewhere(make))


@pytest.mark.parametrize("operation", GUARDED, ids=ids)
def test_no_operation_answers_another_machine_without_a_token(
    guarded: Guarded, operation: Operation
) -> None:
    answer = guarded.ask(operation)
    if operation.on is Resource.INSTANCE:
        assert answer.problem == "forbidden"
    else:
        assert answer.status == 401 and answer.problem == "unauthenticated"


@pytest.mark.parametrize("operation", GUARDED, ids=ids)
def test_each_verb_is_denied_to_another_machine_without_its_grant(
    guarded: Guarded, operation: Operation
) -> None:
    if operation.access is Access.KNOWN:  # any principal with a token
        assert guarded.ask(operation, guarded.nothing).status not in DENIED
        return
    assert guarded.ask(operation, guarded.nothing).problem == "forbidden"
    for verb, token in guarded.only.items():
        includes = verb is operation.access or operation.access is Access.OBSERVE
        allowed = includes and operation.on is not Resource.INSTANCE
        denied = guarded.ask(operation, token).status in DENIED
        assert denied is not allowed, f"{verb} *"


def test_what_needs_no_token_is_what_the_documentation_says(guarded: Guarded) -> None:
    open_ = [one for one in OPERATIONS.values() if one.access is Access.OPEN]
    assert {one.path for one in open_} == OPEN_PATHS
    assert [guarded.ask(one).status for one in open_] == [200] * len(open_)


@pytest.mark.parametrize(
    "path", ["/metrics", "/v1/namespaces/default/topics", "/v2/none", "/v2/", "/favicon.ico", "//"]
)
def test_what_is_no_operation_tells_another_machine_nothing(guarded: Guarded, path: str) -> None:
    assert guarded.request("GET", path, None).status in (401, 404)
    assert b"orders" not in guarded.request("GET", path, None).body


def _tephra_port(guarded: Guarded) -> int:
    [ready] = guarded.service.events("ready")
    return int(ready["tephra_port"])


def test_the_service_listens_nowhere_else(guarded: Guarded) -> None:
    if not guarded.network.isolated:
        pytest.skip("what listens on this machine is not only this service")
    lines = Path(f"/proc/{guarded.service.pid}/net/tcp").read_text().splitlines()[1:]
    lines += Path(f"/proc/{guarded.service.pid}/net/tcp6").read_text().splitlines()[1:]
    listening = {int(line.split()[1].rpartition(":")[2], 16) for line in lines if " 0A " in line}
    assert listening == {guarded.service.address[1], _tephra_port(guarded)}


def test_tephras_port_which_knows_no_token_ends_the_connection_of_another_machine(
    guarded: Guarded,
) -> None:
    if not guarded.network.isolated:
        pytest.skip("the connection would come from this machine")
    address = (guarded.network.host, _tephra_port(guarded))

    def ask() -> bytes:
        with socket.create_connection(address, 20) as connection:
            connection.settimeout(20)
            assert connection.getsockname()[0] == ELSEWHERE
            try:
                return connection.recv(1)
            except ConnectionResetError:
                return b""

    assert guarded.network.from_elsewhere(ask) == b""


def test_who_asks_is_known_by_the_address_of_his_machine(guarded: Guarded) -> None:
    if not guarded.network.isolated:
        pytest.skip("it would be this machine's")
    guarded.request("GET", "/v2/namespaces/default/topics", None, guarded.only[Access.OBSERVE])
    addresses = {one["address"] for one in guarded.service.events("access_allowed")}
    assert addresses == {ELSEWHERE}


def test_where_no_namespace_can_be_made_it_is_said_and_another_address_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tests.network_kit._libc.unshare", lambda _: -1)
    monkeypatch.setattr("ctypes.get_errno", lambda: 1)
    try:
        with pytest.warns(UserWarning, match="No network namespace"), two_machines() as network:
            assert not network.isolated and not network.host.startswith("127.")
    except AssertionError as error:  # a machine without any network
        assert "no address but loopback" in str(error)
