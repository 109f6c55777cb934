"""The configuration: sources and their precedence; faults with their cause, place and remedy."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tms.cli.serve import settings as settings_of_cli
from tms.errors import ConfigError
from tms.serve.config import Settings
from tms.serve.config_sources import load, load_told


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tms.toml"


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in os.environ:
        if name.upper().startswith("TMS__"):
            monkeypatch.delenv(name)


def faults(file: Path | None, flags: Mapping[str, object]) -> list[str]:
    """The fault lines of a refused configuration."""
    with pytest.raises(ConfigError) as caught:
        load(file, flags)
    return [line.strip() for line in caught.value.message.splitlines()[1:]]


def test_only_the_data_directory_has_no_default() -> None:
    settings = load(None, {"data": "d"})
    assert settings.data == Path("d")
    assert (settings.server.host, settings.server.port) == ("127.0.0.1", 7070)
    [fault] = faults(None, {})
    assert fault.startswith("data: missing")
    assert "--data" in fault


def test_flags_win_over_the_environment_and_that_over_the_file(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text('data = "f"\n[server]\nport = 1\nlog_level = "error"\n[limits]\nthreads = 3\n')
    monkeypatch.setenv("TMS__SERVER__PORT", "2")
    monkeypatch.setenv("TMS__SERVER__DRAIN_S", "4")
    settings = load(file, {"server.port": 3})
    assert settings.server.port == 3
    assert settings.server.drain_s == 4
    assert settings.server.log_level == "error"
    assert settings.limits.threads == 3
    assert load(file, {}).server.port == 2


@pytest.mark.parametrize("name", ["TMS__STORE_FILE", "tms__store_file"])
def test_any_setting_may_stand_in_a_file_that_a_variable_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for name_, value in ((name, "hbase://h:1\n"), ("TMS__ENGINE__THREADS_FILE", " 7 ")):
        place = tmp_path / name_
        place.write_text(value)
        monkeypatch.setenv(name_, str(place))
    settings = load(None, {})
    assert (settings.store, settings.engine.threads) == ("hbase://h:1", 7)
    assert load(None, {"engine.threads": 3}).engine.threads == 3


def test_every_setting_has_such_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every secret in the settings may come from a file."""
    place = tmp_path / "value"
    place.write_text("?")
    for key, _, kind, _ in (setting for setting in settings_of_cli() if setting[0] != "data"):
        with monkeypatch.context() as patched:
            patched.setenv(f"TMS__{key.upper().replace('.', '__')}_FILE", str(place))
            if kind in (int, float, bool):
                [fault] = faults(None, {"data": "d"})
                assert fault.startswith(f"{key}: ") and "'?'" not in fault, fault
                assert str(place) in fault


def test_a_file_of_a_setting_that_cannot_be_used_is_named_and_never_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s3cret")
    monkeypatch.setenv("TMS__SERVER__PORT_FILE", str(secret))
    [fault] = faults(None, {"data": "d"})
    assert fault.startswith("server.port:") and "TMS__SERVER__PORT_FILE" in fault
    assert "s3cret" not in fault
    monkeypatch.setenv("TMS__SERVER__PORT", "1")
    with pytest.raises(ConfigError, match=r"server\.port is said by two"):
        load(None, {"data": "d"})
    monkeypatch.delenv("TMS__SERVER__PORT")
    secret.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="TMS__SERVER__PORT_FILE names cannot be read: it is not"):
        load(None, {"data": "d"})
    secret.write_text("1" * 70_000)
    with pytest.raises(ConfigError, match="more than"):
        load(None, {"data": "d"})
    secret.unlink()
    with pytest.raises(ConfigError, match="No such file"):
        load(None, {"data": "d"})


def test_what_is_configured_reaches_connections_requests_and_the_engine(file: Path) -> None:
    file.write_text(
        'data = "d"\n[limits]\nbody_bytes_max = 2_000_000\nhead_timeout_s = 3\n'
        "[engine]\ncache_bytes = 7\nsegment_bytes = 2_000_000\n"
    )
    settings = load(file, {})
    assert settings.limits.requests().body_bytes_max == 2_000_000
    assert settings.limits.connections(50).head_timeout_s == 3
    assert settings.limits.connections(50).connections_max == 50
    engine = settings.engine.config()
    assert (engine.cache_bytes, engine.log.segment_bytes) == (7, 2_000_000)


def test_all_faults_are_named_at_once_with_key_and_place(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text(
        'data = "d"\n\n[server]\nprot = 7070\nlog_level = "loud"\n\n'
        "[limits]\nthreads = 0\n[colour]\n"
    )
    monkeypatch.setenv("TMS__SERVER__PORT", "abc")
    monkeypatch.setenv("TMS__SEVER__PORT", "1")
    monkeypatch.setenv("TMS__ENGINE__CASH_BYTES", "1")
    found = faults(file, {"server.drain_s": -1, "engine.threads": 0})
    expected = [
        ("server.prot", "did you mean server.port?", f"{file}, line 4"),
        ("server.log_level", "'loud'", f"{file}, line 5"),
        ("limits.threads", "greater than or equal to 1", f"{file}, line 8"),
        ("colour", "no such key", f"{file}, line 9"),
        ("server.port", "'abc'", "environment variable TMS__SERVER__PORT"),
        ("sever", "did you mean server?", "environment variable TMS__SEVER__PORT"),
        ("engine.cash_bytes", "engine.cache_bytes", "environment variable TMS__ENGINE__CASH_BYTES"),
        ("server.drain_s", "-1", "flag --drain-s"),
        ("engine.threads", "0", "flag --engine-threads"),
    ]
    for key, why, place in expected:
        [line] = [line for line in found if line.startswith(f"{key}:")]
        assert why in line
        assert f"({place})" in line
    assert len(found) == len(expected)


def test_a_variable_below_a_key_that_is_no_section_is_a_fault_of_that_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TMS__DATA", "d")
    monkeypatch.setenv("tms__data__x", "1")
    [fault] = faults(None, {})
    assert fault.startswith("data: ") and "environment variable" in fault


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("data = 'a'\ndata = 'b'\n", id="duplicate_key"),
        pytest.param("a: &a [*a, *a]\n", id="yaml_bomb"),
        pytest.param("data = [[[[\n", id="truncated"),
        pytest.param("data = " + "[" * 100_000, id="deep"),
    ],
)
def test_row_66_a_file_that_is_no_toml_is_named_with_the_line(file: Path, text: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(file, {})
    assert str(file) in caught.value.message
    assert len(caught.value.message) < 1_000


def test_row_66_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    for name in ("missing.toml", "binary.toml", "."):
        with pytest.raises(ConfigError) as caught:
            load(tmp_path / name, {})
        assert str(tmp_path / name) in caught.value.message


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org"])
def test_an_address_that_others_reach_is_guarded_unless_it_is_insecure(host: str) -> None:
    there: dict[str, object] = {"data": "d", "server.host": host}
    assert load(None, there).server.is_guarded
    [fault] = faults(None, {**there, "server.access": "off"})
    assert "--insecure" in fault
    settings = load(None, {**there, "server.insecure": True})
    assert settings.server.is_open and not settings.server.is_guarded
    [fault] = faults(None, {**there, "server.access": "on", "server.insecure": True})
    assert "leave out one" in fault


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_addresses_of_this_machine_need_nothing(host: str) -> None:
    here = load(None, {"data": "d", "server.host": host}).server
    assert not here.is_guarded and not here.is_open
    assert load(None, {"data": "d", "server.host": host, "server.access": "on"}).server.is_guarded


@pytest.mark.parametrize("allow", ["10.0.0.0/33", "tms", "10.0.0.1/8"])
def test_networks_of_tephras_clients_are_networks(allow: str) -> None:
    [fault] = faults(None, {"data": "d", "tephra.allow": allow})
    assert "tephra" in fault and "networks are like 10.0.0.0/8" in fault


def test_limits_that_contradict_each_other_are_refused() -> None:
    flags = {"data": "d", "limits.body_bytes_max": 1 << 30}
    [fault] = faults(None, flags)
    assert "publish_bytes_in_flight_max" in fault


def test_every_key_has_a_default_within_its_own_bounds() -> None:
    dumped = Settings(data=Path("d")).model_dump()
    assert Settings(**dumped) == Settings(data=Path("d"))


def test_a_transaction_of_cdap_may_take_more_than_a_year(tmp_path: Path) -> None:
    years_s = 3 * 366 * 86_400
    settings = load(None, {"data": str(tmp_path), "cdap.tx_max_lifetime_s": years_s})
    assert settings.cdap.limits().tx_max_lifetime_ms == years_s * 1_000


@pytest.mark.parametrize("lifetime_s", [0, 2**31, 2**63 - 1])
def test_the_lifetime_of_a_transaction_of_cdap_has_bounds(lifetime_s: int) -> None:
    [fault] = faults(None, {"data": "d", "cdap.tx_max_lifetime_s": lifetime_s})
    assert "tx_max_lifetime_s" in fault


# --- tokens of an issuer --------------------------------------------------------------------------

JWT = {"data": "d", "server.access": "on", "jwt.issuer": "https://i", "jwt.audience": "tms"}


@pytest.mark.parametrize(
    "place",
    ["https://i/keys?v=1", "https://[::1]:8443/", "http://127.0.0.1:8080/k", "/etc/tms/keys.json"],
)
def test_keys_of_an_issuer_are_read_safely(place: str) -> None:
    options = load(None, {**JWT, "jwt.jwks": place}).jwt.options()
    assert options is not None and options.jwks == place
    assert options.rules == ("https://i", "tms", "sub", options.rules.algorithms, 30.0)
    assert "RS256" in options.rules.algorithms and "HS256" not in options.rules.algorithms


@pytest.mark.parametrize(
    "place",
    [
        "http://issuer.example/keys",
        "http://10.0.0.1/keys",
        "http://127.0.0.1.example/keys",
        "http://127.0.0.1@issuer.example/keys",
        "https://user:secret@issuer.example/keys",
        "https://issuer.example/keys#one",
        "https:///keys",
        "https://issuer.example:port/keys",
        "https://issuer.example/\r\nx: y",
        "https://issuer.example/ä",
        "file:///etc/tms/keys.json",
        "ftp://issuer.example/keys",
    ],
)
def test_keys_that_others_could_change_on_their_way_are_refused(place: str) -> None:
    [fault] = faults(None, {**JWT, "jwt.jwks": place})
    assert fault.startswith("jwt: jwks is an URL https://HOST/PATH") and "secret@" not in fault[:60]


@pytest.mark.parametrize("algorithms", ["HS256", "RS256,HS512", "none", "", "ES256K", "rs256"])
def test_algorithms_have_a_public_key(algorithms: str) -> None:
    [fault] = faults(None, {**JWT, "jwt.jwks": "/keys", "jwt.algorithms": algorithms})
    assert fault.startswith("jwt: algorithms: ") and "RS256, RS384" in fault


@pytest.mark.parametrize("name", ["issuer", "audience"])
def test_an_issuer_is_trusted_for_one_audience(name: str) -> None:
    [fault] = faults(None, {**JWT, "jwt.jwks": "/keys", f"jwt.{name}": ""})
    assert fault.startswith(f"jwt: jwks is given without {name}; give --jwt-{name} too")
    [fault] = faults(None, {"data": "d", f"jwt.{name}": "x"})
    assert "give --jwt-jwks too" in fault


def test_an_issuer_needs_access_control() -> None:
    [fault] = faults(None, {**JWT, "jwt.jwks": "/keys", "server.access": "auto"})
    assert fault.startswith("jwt.jwks: nobody is asked") and "--access on" in fault
    assert load(None, JWT | {"jwt.jwks": "/keys", "server.host": "::"}).server.is_guarded


def told(file: Path | None, flags: Mapping[str, object]) -> dict[str, tuple[str, str]]:
    """Value and source of each setting as the service shows it."""
    return {one.key: (one.value, one.source) for one in load_told(file, flags)[1]}


def test_each_setting_is_told_with_its_source(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text('data = "f"\n[server]\nport = 1\nlog_level = "error"\n')
    monkeypatch.setenv("TMS__SERVER__DRAIN_S", "4")
    settings = told(file, {"server.port": 3})
    assert settings["data"] == ("f", f"{file}, line 1")
    assert settings["server.port"] == ("3", "flag --port")
    assert settings["server.log_level"] == ("error", f"{file}, line 4")
    assert settings["server.drain_s"] == ("4.0", "environment variable TMS__SERVER__DRAIN_S")
    assert settings["server.host"] == ("127.0.0.1", "")
    known = {key for key, _, _, _ in settings_of_cli()} | {"data"}
    assert set(settings) == known


@pytest.mark.parametrize(
    "place",
    [
        "zookeeper://ann:hush@h:1/tms",
        "zookeeper://ann:hu%73h-hush@h:1/tms",
        "zookeeper://ann:hush@hush@h:1/tms",
    ],
)
def test_secrets_are_not_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    from tms.serve import config_sources

    text = config_sources._text(place)
    assert "hush" not in text and "ann" not in text
    assert text.endswith("@h:1/tms")
    flags = {"store": "hbase://h:1", "cluster": "zookeeper://ann:hush@h:1/tms"}
    assert told(None, flags)["cluster"][0] == "zookeeper://(hidden)@h:1/tms"
    kept = tmp_path / "store"
    kept.write_text("hbase://secret-host:1")
    monkeypatch.setenv("TMS__STORE_FILE", str(kept))
    value, source = told(None, {})["store"]
    assert value == "(hidden)"
    assert "TMS__STORE_FILE" in source and "secret-host" not in source
