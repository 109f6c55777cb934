"""A misspelt option is an error that names the right one."""

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import tms
import tms.aio
from tms.cluster.ownership import OwnerLimits
from tms.engine.config import EngineConfig
from tms.errors import Invalid, NotFound
from tms.log.partition import LogLimits
from tms.topics.compaction.compaction import CompactionLimits

Open = Callable[..., Any]


@pytest.mark.parametrize("open_bus", [tms.open, tms.aio.open])
def test_an_unknown_option_of_open_names_the_nearest_and_all(
    open_bus: Open, tmp_path: Path
) -> None:
    with pytest.raises(Invalid) as caught:
        open_bus(tmp_path / "data", cache_byte=1)
    assert caught.value.details["field"] == "cache_byte"
    assert caught.value.message == (
        "tms.open has no option 'cache_byte'. Did you mean cache_bytes? It takes block_bytes, "
        "cache_bytes, cleaner_interval_s, compaction, create, in_flight_bytes, log, outage_s, "
        "owner, take_over, threads, timeout_s, topics, transaction_lifetime_ms."
    )
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("kind", [EngineConfig, LogLimits, CompactionLimits, OwnerLimits])
def test_an_unknown_field_of_a_configuration_names_the_nearest_and_all(kind: Any) -> None:
    names = sorted(field.name for field in fields(kind))
    near = names[-1]
    with pytest.raises(Invalid) as caught:
        kind(**{near + "x": 1})
    assert caught.value.message == (
        f"{kind.__module__}.{kind.__name__} has no option '{near}x'. Did you mean {near}? It takes "
        f"{', '.join(names)}."
    )


@pytest.mark.parametrize("lifetime_ms", [2**63 - 1, float("inf"), 2**31 * 1_000])
def test_a_transaction_begun_elsewhere_has_a_bound_to_its_lifetime(lifetime_ms: Any) -> None:
    with pytest.raises(Invalid, match="0 to 2147483647000") as caught:
        EngineConfig(transaction_lifetime_ms=lifetime_ms)
    assert caught.value.details["field"] == "transaction_lifetime_ms"
    EngineConfig(transaction_lifetime_ms=(2**31 - 1) * 1_000)


@pytest.mark.parametrize("connect", [tms.connect, tms.aio.connect])
def test_an_unknown_option_of_connect_names_the_nearest_and_all(connect: Open) -> None:
    with pytest.raises(Invalid) as caught:
        connect("http://localhost:7070", timeout=5)
    assert caught.value.message == (
        f"{connect.__module__}.connect has no option 'timeout'. Did you mean timeout_s? It takes "
        "ca, cert, outage_s, timeout_s, token, url."
    )


def test_what_is_like_no_option_gets_the_list_alone() -> None:
    with pytest.raises(
        Invalid, match=r"no option 'zzz'\. It takes ca, cert, outage_s, timeout_s, token, url\.$"
    ):
        tms.connect("http://localhost:7070", zzz=5)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("option", "value", "wanted"),
    [
        ("cache_bytes", "64M", "a number from 0 to 2147483647000, got '64M'"),
        ("threads", -1, "a number from 0 to 2147483647000, got -1"),
        ("topics", True, "a number from 0 to 2147483647000, got True"),
        ("log", {"segment_bytes": 1}, "tms.log.partition.LogLimits, got {'segment_bytes': 1}"),
    ],
)
def test_a_value_of_the_wrong_kind_is_named(
    option: str, value: Any, wanted: str, tmp_path: Path
) -> None:
    with pytest.raises(Invalid) as caught:
        tms.open(tmp_path / "data", **{option: value})
    assert caught.value.message == f"{option} is {wanted}."
    assert not (tmp_path / "data").exists()


def test_open_without_create_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="There is no data directory"):
        tms.open(tmp_path / "typo", create=False)
    assert list(tmp_path.iterdir()) == []
    tms.open(tmp_path / "data").close()
    tms.open(tmp_path / "data", create=False).close()
