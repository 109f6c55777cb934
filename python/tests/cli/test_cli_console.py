"""`tms console`: the address of the console, with a link that signs in once; sessions in lists."""

import json
from collections.abc import Callable, Iterator

import pytest

import tms
from tests.access_kit import People
from tests.console_kit import console_served
from tests.http_kit import Served
from tests.pages_kit import PageReader
from tms.cli.main import run
from tms.server.service import AccessLimits

Tms = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with console_served(AccessLimits()) as served:
        yield served


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that a browser was opened with."""
    addresses: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda one: addresses.append(one) or True)
    return addresses


@pytest.fixture
def cli(served: Served, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Tms:
    """Run `tms` against the service, with a token."""

    def cli(*arguments: str, token: str = "", url: str = served.url) -> tuple[int, str, str]:
        capsys.readouterr()
        with monkeypatch.context() as patched:
            patched.setenv("TMS_TOKEN", token)
            code = run([*arguments, "--url", url, "--no-input"])
        said = capsys.readouterr()
        return code, said.out, said.err

    return cli


def is_link(address: str, url: str) -> bool:
    return address.startswith(f"{url}/console/enter/tms_")


def test_the_console_is_opened_with_a_link_that_is_not_printed(
    served: Served, cli: Tms, opened: list[str]
) -> None:
    code, out, err = cli("console", token=People(served).token("ann"))
    assert code == 0 and not out and "tms_" not in err
    (address,) = opened
    assert is_link(address, served.url)


def test_the_address_is_printed_where_a_browser_is_elsewhere(
    served: Served, cli: Tms, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    token = People(served).token("ann")
    code, out, _ = cli("console", "--print", token=token)
    assert code == 0 and is_link(out.strip(), served.url)
    code, out, _ = cli("console", "--json", token=token)
    assert code == 0 and is_link(json.loads(out)["address"], served.url)
    assert not opened
    monkeypatch.setattr("webbrowser.open", lambda one: False)
    code, out, _ = cli("console", token=token)
    assert code == 0 and is_link(out.strip(), served.url)


def test_without_a_token_the_console_asks_for_one(served: Served, cli: Tms) -> None:
    code, out, _ = cli("console", "--print")
    assert code == 0 and out.strip() == f"{served.url}/console/"
    code, out, err = cli("console", "--print", token="tms_wrong")
    assert code != 0 and not out and "not valid" in err


def test_without_access_control_the_address_has_no_link(cli: Tms) -> None:
    with console_served() as open_to_all:
        code, out, _ = cli("console", "--print", url=open_to_all.url)
        assert code == 0 and out.strip() == f"{open_to_all.url}/console/"


def test_sessions_are_listed_apart_from_tokens_and_revoked_by_id(served: Served, cli: Tms) -> None:
    people = People(served)
    boss, ann = people.token("boss", "manage access"), people.access.create_token("ann")
    people.access.add_grant("ann", "observe", "*")
    cli("console", "--print", token=ann.token)
    with tms.connect(served.url, token=ann.token) as bus:
        session = bus.admin.access.create_session()
    tokens = json.loads(cli("token", "list", "--json", token=boss)[1])
    assert session.id not in {one["id"] for one in tokens}
    listed = json.loads(cli("token", "sessions", "--json", token=boss)[1])
    of_ann = [one for one in listed if one["token"] == ann.id]
    assert sorted(one["is_link"] for one in of_ann) == [False, True]
    assert ann.id in cli("token", "sessions", token=boss)[1]
    reader = PageReader(served.url, tms_session=session.token)
    assert reader.get("/console/topics").status == 200
    assert cli("token", "revoke", session.id, token=boss)[0] == 0
    assert reader.get("/console/topics").status == 401
    assert cli("token", "revoke", session.id, token=boss)[0] != 0
    assert cli("token", "revoke", ann.id, token=boss)[0] == 0
    assert [one for one in people.access.list_sessions() if one.token == ann.id] == []
