"""`tms ctx`: saved contexts, their permissions, their precedence, and errors."""

import os
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cli.test_cli import Run, data, run  # noqa: F401
from tests.http_kit import serving
from tests.tls_kit import Authority
from tms.cli.contexts import Context, Contexts
from tms.cli.target import URL_DEFAULT, Target, target_of
from tms.errors import ConfigError

URL, OTHER = "http://127.0.0.1:7071", "http://127.0.0.1:7072"
SECRET = "tms_0123456789ab_secret"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of contexts, which does not exist yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "tms" / "contexts"


@pytest.fixture
def ctx(run: Run, home: Path) -> Run:  # noqa: F811
    """Runs `tms`, with no data directory in the environment."""
    return lambda *arguments, **environ: run(*arguments, **{"TMS_DATA": "", **environ})


def _accept(context: Context, token: str | None) -> None:
    """Accept any context."""


def modes(folder: Path) -> dict[str, int]:
    """The permissions of a folder and of its files."""
    paths = [folder, *folder.iterdir()]
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in paths}


def test_a_context_is_saved_selected_shown_listed_and_removed(ctx: Run, tmp_path: Path) -> None:
    (tmp_path / "ann.token").write_text(SECRET + "\n")
    assert ctx("ctx", "save", "prod", "--url", URL, "--token", SECRET).code == 0
    assert ctx("ctx", "save", "test", "--url", OTHER, "--token-file", "ann.token").code == 0
    assert ctx("ctx", "select", "prod").code == 0
    shown = {one["name"]: one for one in ctx("ctx", "ls", "--json").json}
    assert {name: one["selected"] for name, one in shown.items()} == {"prod": True, "test": False}
    assert shown["prod"]["token"] == "kept"
    assert shown["test"]["token"] == str(tmp_path / "ann.token")  # valid in any working directory
    assert ctx("ctx", "show", "--json").json["url"] == URL
    assert ctx("ctx", "show", "test", "--json").json["url"] == OTHER
    assert ctx("ctx", "show", "--json", TMS_CONTEXT="test").json["url"] == OTHER
    assert ctx("ctx", "rm", "prod", "--yes").code == 0
    assert [one["name"] for one in ctx("ctx", "ls", "--json").json] == ["test"]
    assert "No context is selected" in ctx("ctx", "show").err
    assert (tmp_path / "ann.token").exists()  # it belongs to the user


def test_only_the_user_can_read_contexts_whatever_the_umask(ctx: Run, home: Path) -> None:
    before = os.umask(0)
    try:
        ctx("ctx", "save", "prod", "--url", URL, "--token", SECRET)
        ctx("ctx", "select", "prod")
    finally:
        os.umask(before)
    found = modes(home)
    assert found.pop("contexts") == 0o700
    assert found.pop(".lock") & 0o077 == 0
    assert set(found.values()) == {0o600} and len(found) == 3, found


def test_a_token_stands_in_its_own_file_and_is_never_printed(ctx: Run, home: Path) -> None:
    ended = [
        ctx("ctx", "save", "prod", "--url", URL, "--token", "-", stdin=f"{SECRET}\n".encode()),
        ctx("ctx", "select", "prod"),
        *(ctx("ctx", what, "-o", form) for what in ("ls", "show") for form in ("table", "json")),
        ctx("topic", "list", "--json"),
    ]
    assert not [one for one in ended if SECRET in one.err or SECRET.encode() in one.out]
    holding = [path for path in home.iterdir() if SECRET in path.read_text()]
    assert [path.suffix for path in holding] == [".token"]
    ctx("ctx", "save", "prod", "--token", SECRET + "2")
    assert len(list(home.glob("*.token"))) == 1  # the earlier file is gone
    ctx("ctx", "rm", "prod", "--yes")
    assert sorted(path.name for path in home.iterdir()) == [".lock"]


def test_a_context_that_is_a_link_stays_one(ctx: Run, home: Path, tmp_path: Path) -> None:
    ctx("ctx", "save", "prod", "--url", URL)
    [name] = [path.name for path in home.iterdir() if path.name.startswith("prod")]
    kept = tmp_path / "dotfiles" / name
    kept.parent.mkdir(mode=0o700)
    (home / name).rename(kept)
    (home / name).symlink_to(kept)
    assert ctx("ctx", "save", "prod", "--url", OTHER).code == 0
    assert (home / name).is_symlink() and ctx("ctx", "show", "prod", "--json").json["url"] == OTHER
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600


def test_what_is_not_said_stays_when_a_context_is_saved_again(ctx: Run, home: Path) -> None:
    ctx("ctx", "save", "prod", "--url", URL, "--token", SECRET)
    assert ctx("ctx", "save", "prod", "--url", OTHER).code == 0
    assert Contexts(os.environ).load("prod") == (
        Context(OTHER, next(home.glob("*.token")).name),
        SECRET,
    )


def test_removing_asks(ctx: Run, home: Path) -> None:
    ctx("ctx", "save", "prod", "--url", URL)
    assert ctx("ctx", "rm", "prod", "--no-input").code == 2
    assert ctx("ctx", "rm", "prod", "--dry-run").code == 0
    assert (home / "prod.json").exists()


class Case(NamedTuple):
    """A command line and an environment, and the address that they mean."""

    typed: Mapping[str, str]
    environ: Mapping[str, str]
    url: str
    token: str | None  # of the context; None: the environment's, if any


CASES = {
    "nothing": Case({}, {}, OTHER, "selected"),
    "TMS_CONTEXT": Case({}, {"TMS_CONTEXT": "named"}, URL, "named"),
    "TMS_URL": Case({}, {"TMS_URL": "http://c:1", "TMS_CONTEXT": "named"}, "http://c:1", None),
    "--context": Case({"context": "named"}, {"TMS_URL": "http://c:1"}, URL, "named"),
    "--context over TMS_DATA": Case({"context": "named"}, {"TMS_DATA": "d"}, URL, "named"),
    "--url": Case({"url": "http://d:1"}, {"TMS_CONTEXT": "named"}, "http://d:1", None),
    "--url with --context": Case(
        {"url": "http://d:1", "context": "named"}, {}, "http://d:1", "named"
    ),
    "a token of the environment": Case({}, {"TMS_TOKEN": "t"}, OTHER, None),
    "a file of the environment": Case({}, {"TMS_TOKEN_FILE": "f"}, OTHER, None),
    "--context over a token of the environment": Case(
        {"context": "named"}, {"TMS_TOKEN": "t"}, URL, "named"
    ),
    "a context without a token": Case({"context": "bare"}, {"TMS_TOKEN": "t"}, URL, None),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_is_typed_wins_over_the_environment_and_that_over_the_selected_context(
    home: Path, case: Case
) -> None:
    contexts = Contexts(os.environ)
    contexts.save("named", {"url": URL}, "named", _accept)
    contexts.save("selected", {"url": OTHER}, "selected", _accept)
    contexts.save("bare", {"url": URL}, None, _accept)
    contexts.select("selected")
    environ = {"XDG_CONFIG_HOME": os.environ["XDG_CONFIG_HOME"], **case.environ}
    typed = case.typed
    meant = target_of(typed.get("url"), None, typed.get("context"), environ)
    assert (meant.url, meant.token(environ)) == (case.url, case.token)


def test_files_of_a_context_yield_to_the_environment_as_its_token_does() -> None:
    context = Context(URL, ca="a", cert="c", key="k")
    selected = Target(URL, context=context)
    assert (selected.ca({}), selected.own_certificate({})) == ("a", ("c", "k"))
    assert selected.ca({"TMS_CA": "b"}) is None
    assert selected.own_certificate({"TMS_KEY": "b"}) is None
    typed = Target(URL, context=context, typed=True)
    assert typed.ca({"TMS_CA": "b"}) == "a"
    assert typed.own_certificate({"TMS_CERT": "b", "TMS_KEY": "b"}) == ("c", "k")


def test_without_any_context_the_service_on_this_machine_is_meant(home: Path) -> None:
    assert target_of(None, None, None, os.environ | {"TMS_URL": "", "TMS_DATA": ""}) == Target(
        URL_DEFAULT, named=False
    )
    assert not home.parent.parent.exists()  # reading creates nothing


def test_a_context_and_a_data_directory_are_one_too_many(ctx: Run, home: Path) -> None:
    ctx("ctx", "save", "prod", "--url", URL)
    typed = ctx("topic", "list", "--context", "prod", "--data", "d")
    assert typed.code == 2 and "--data" in typed.err and "--context" in typed.err
    said = ctx("topic", "list", TMS_CONTEXT="prod", TMS_DATA="d")
    assert said.code == 2 and "TMS_DATA" in said.err and "TMS_CONTEXT" in said.err
    assert "--host" in ctx("serve", "--context", "prod").err


def test_no_benchmark_runs_on_a_service_only_because_it_is_selected(ctx: Run, home: Path) -> None:
    ctx("ctx", "save", "prod", "--url", "http://127.0.0.1:1")
    ctx("ctx", "select", "prod")
    few = ("bench", "--messages", "100", "--lone", "10")
    assert ctx(*few).code == 0
    assert ctx(*few, "--context", "prod").code == 6


def test_a_context_leads_to_a_service_with_tls(ctx: Run, home: Path, authority: Authority) -> None:
    from tms.runtime.tls import ServerTls

    own = authority.sign("alice")
    with serving(tls=ServerTls(*authority.sign().pair, str(authority.ca))) as served:
        url = "https://{}:{}".format(*served.address)
        files = ("--ca", str(authority.ca), "--cert", str(own.cert), "--key", str(own.key))
        assert ctx("ctx", "save", "safe", "--url", url, *files).code == 0
        assert ctx("topic", "create", "t", "--context", "safe").code == 0
        assert ctx("ctx", "select", "safe").code == 0
        assert [one["topic"] for one in ctx("topic", "list", "--json").json] == ["t"]
        assert "problem" not in ctx("doctor", "--all").err.partition("service")[2]


def _break(home: Path, how: str) -> None:
    file = home / "prod.json"
    match how:
        case "gone":
            file.unlink()
        case "no JSON":
            file.write_text("{")
        case "an unknown field":
            file.write_text('{"url": "http://a:1", "tokn": "x"}')
        case "no URL":
            file.write_text("{}")
        case "a token elsewhere":
            file.write_text('{"url": "http://a:1", "token_file": "../../secret"}')
        case "another's token":
            file.write_text(f'{{"url": "http://a:1", "token_file": "b.{"0" * 16}.token"}}')
        case "its token is gone":
            next(home.glob("*.token")).unlink()
        case "too long":
            file.write_text(" " * 70_000)
        case "readable by others":
            file.chmod(0o640)
        case "a token readable by others":
            next(home.glob("*.token")).chmod(0o644)
        case "a folder that others can read":
            home.chmod(0o755)
        case "a folder":
            file.unlink()
            file.mkdir(mode=0o700)
        case "of another user":
            os.chown(file, 12345, -1)


FAULTS = {
    "gone": "tms ctx save prod --url URL",
    "no JSON": "tms ctx rm prod",
    "an unknown field": "`tokn`",
    "no URL": "`url`",
    "a token elsewhere": "tms ctx rm prod",
    "another's token": "tms ctx rm prod",
    "its token is gone": "save it again",
    "too long": "rm ",
    "readable by others": "chmod 600 ",
    "a token readable by others": "chmod 600 ",
    "a folder that others can read": "chmod 700 ",
    "a folder": "directory",
    "of another user": "uid 12345",
}


@pytest.mark.parametrize("how", FAULTS)
def test_a_context_that_cannot_be_used_says_what_to_do(ctx: Run, home: Path, how: str) -> None:
    if how == "of another user" and os.geteuid() != 0:
        pytest.skip("only root can give a file to another user")
    ctx("ctx", "save", "prod", "--url", URL, "--token", SECRET)
    ctx("ctx", "select", "prod")
    _break(home, how)
    for command in (("topic", "list"), ("topic", "list", "--context", "prod"), ("ctx", "show")):
        ended = ctx(*command)
        assert ended.code == 78 and FAULTS[how] in ended.err, ended.err
        assert "next:" in ended.err and SECRET not in ended.err
    assert ctx("topic", "list", "--url", "http://127.0.0.1:1").code == 6  # needs no context


def test_a_malformed_context_hides_no_other_and_can_be_removed(ctx: Run, home: Path) -> None:
    ctx("ctx", "save", "bad", "--url", URL)
    ctx("ctx", "save", "good", "--url", URL)
    (home / "bad.json").write_text("{")
    ended = ctx("ctx", "ls", "--json")
    assert [one["name"] for one in ended.json] == ["good"] and "bad.json" in ended.err
    assert ctx("ctx", "rm", "bad", "--yes").code == 0
    assert Contexts(os.environ).names() == ["good"]


def test_a_selection_that_names_nothing_can_be_made_anew(ctx: Run, home: Path) -> None:
    ctx("ctx", "save", "prod", "--url", URL)
    ctx("ctx", "select", "prod")
    (home / "selected").write_text("../x")
    assert "tms ctx select" in ctx("topic", "list").err
    assert ctx("ctx", "select", "prod").code == 0
    (home / "prod.json").unlink()
    assert "prod is gone" in ctx("ctx", "ls").err


@pytest.mark.parametrize(
    "arguments",
    [
        ("new",),
        ("new", "--token", SECRET),  # without a URL
        ("../x", "--url", URL),
        ("x" * 65, "--url", URL),
        ("new", "--url", "http://a/path"),
        ("new", "--url", URL, "--token-file", "missing"),
        ("new", "--url", URL, "--token", SECRET, "--token-file", "missing"),
        ("new", "--url", URL, "--token", "two words"),
        ("new", "--url", URL, "--token", ""),
        ("new", "--url", URL, "--key", "missing"),
        ("new", "--url", "https://a:1", "--ca", "missing"),
        ("new", "--url", URL, "--data", "d"),
        ("new", "--url", URL, "--context", "old"),
    ],
)
def test_what_cannot_be_used_is_not_saved(ctx: Run, home: Path, arguments: tuple[str, ...]) -> None:
    ended = ctx("ctx", "save", *arguments)
    assert ended.code in (2, 78), ended
    assert SECRET not in ended.err
    assert Contexts(os.environ).names() == []
    assert not home.exists() or not list(home.glob("*.token"))


def test_commands_that_save_at_once_lose_nothing(home: Path) -> None:
    def save(number: int) -> None:
        contexts = Contexts(os.environ)
        contexts.save(f"own-{number}", {"url": URL}, f"token-{number}", _accept)
        contexts.save(
            "shared", {"url": URL, ("ca", "cert", "key")[number % 3]: "/f"}, None, _accept
        )
        contexts.save("pair", {"url": f"http://h:{number + 1}"}, f"token-{number + 1}", _accept)
        context, token = contexts.load("pair")
        assert token is not None and context.url.removeprefix("http://h:") == token[6:]

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(save, range(24)))
    contexts = Contexts(os.environ)
    assert len(contexts.names()) == 26
    assert {contexts.load(f"own-{number}")[1] for number in range(24)} == {
        f"token-{number}" for number in range(24)
    }
    assert contexts.load("shared")[0] == Context(URL, ca="/f", cert="/f", key="/f")
    assert len(list(home.glob("*.token"))) == 25


def test_who_changes_contexts_waits_for_another_process_within_bounds(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contexts = Contexts(os.environ)
    contexts.save("a", {"url": URL}, None, _accept)
    program = f"import fcntl, sys; f = open({str(home / '.lock')!r}); fcntl.flock(f, fcntl.LOCK_EX)"
    program += "; print('has it', flush=True); sys.stdin.read()"
    holder = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"has it\n"
        monkeypatch.setattr("tms.cli.contexts.LOCK_TRIES", 2)
        with pytest.raises(ConfigError, match="Another tms"):
            contexts.save("b", {"url": URL}, None, _accept)
        assert contexts.load("a")[0].url == URL  # a reader does not wait
        holder.kill()
    contexts.save("b", {"url": URL}, None, _accept)
    assert contexts.names() == ["a", "b"]


def _ending(real: Callable[..., object], limit: int) -> Callable[..., object]:
    """`real`, which ends the process after more than `limit` calls."""
    calls = count(1)

    def called(*arguments: object, **named: object) -> object:
        if next(calls) > limit:
            raise KeyboardInterrupt
        return real(*arguments, **named)

    return called


@pytest.mark.parametrize("step", ["rename", "unlink", "fsync", "fchmod", "open"])
def test_a_save_that_ends_at_any_step_leaves_the_old_context_or_the_new_one(
    home: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    contexts = Contexts(os.environ)
    seen = set()
    for limit in range(12):
        contexts.save("prod", {"url": URL}, "old", _accept)
        with monkeypatch.context() as patched:
            patched.setattr(os, step, _ending(getattr(os, step), limit))
            try:
                contexts.save("prod", {"url": OTHER}, "new", _accept)
                seen.add("done")
            except KeyboardInterrupt:
                seen.add("ended")
        context, token = contexts.load("prod")
        assert (context.url, token) in ((URL, "old"), (OTHER, "new"))
        contexts.save("prod", {"url": URL}, "old", _accept)
        assert len(list(home.glob("*.token")) + list(home.glob(".*.new"))) == 1
    assert seen == {"ended", "done"}


def test_without_a_home_there_are_no_contexts_and_saving_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    contexts = Contexts({"XDG_CONFIG_HOME": "relative"})
    assert contexts.names() == [] and contexts.selected() is None
    with pytest.raises(ConfigError, match="no home"):
        contexts.save("a", {"url": URL}, None, _accept)


def test_a_shell_completes_the_names_of_contexts(home: Path) -> None:
    contexts = Contexts(os.environ)
    for name in ("prod", "proto", "test"):
        contexts.save(name, {"url": URL}, None, _accept)
    for words in ("tms ctx select pro", "tms topic list --context pro"):
        done = subprocess.run(
            [sys.executable, "-c", "from tms.cli.main import main; main()"],
            capture_output=True,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": ":".join(sys.path),
                "_TMS_COMPLETE": "bash_complete",
                "COMP_WORDS": words,
                "COMP_CWORD": str(words.count(" ")),
            },
        )
        assert done.stdout.split() == ["plain,prod", "plain,proto"], done
