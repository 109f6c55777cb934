"""Quotas: requests and bytes per time are bounded, and no caller waits for longer than
necessary."""

import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tms
from tests.http_kit import serving
from tests.waiting import PATIENCE_S
from tms.access.quotas import BURST_S, Allowance, Meter
from tms.errors import Invalid, NotFound, Overloaded
from tms.model.access import Quota, check_quota
from tms.server.service import AccessLimits, NetworkOptions
from tms.store.memory import MemoryStore


@given(
    st.floats(0.01, 1_000),
    st.lists(st.tuples(st.floats(0, 5), st.floats(0, 500)), min_size=1, max_size=60),
)
def test_no_more_passes_than_the_rate_a_burst_and_one_request(
    rate: float, asked: list[tuple[float, float]]
) -> None:
    now_s, passed, largest = 0.0, 0.0, 0.0
    allowance = Allowance(rate, now_s)
    for pause_s, amount in asked:
        now_s += pause_s
        wait_s = allowance.wait_s(now_s)
        if wait_s:
            assert allowance.wait_s(now_s + wait_s + 1e-6) == 0.0
            now_s += wait_s + 1e-6
        allowance.take(amount)
        passed, largest = passed + amount, max(largest, amount)
    burst = max(1.0, rate * BURST_S)
    assert passed <= rate * now_s + burst + largest + 1e-3


def test_a_clock_that_goes_back_gives_nothing() -> None:
    allowance = Allowance(1.0, 100.0)
    allowance.wait_s(100.0)
    allowance.take(10)
    assert allowance.wait_s(50.0) > 0
    assert allowance.wait_s(105.0) > 0
    assert allowance.wait_s(110.0) == 0


def test_a_meter_bounds_what_its_quota_names() -> None:
    meter = Meter(Quota("ann", bytes_in_s=10), 0.0)
    for _ in range(100):
        meter.begin()
    meter.end(0, 1_000_000)
    assert meter.wait_s(0.0) == 0.0
    meter.end(30, 0)
    assert 1.9 < meter.wait_s(0.0) < 2.1


@pytest.mark.parametrize(
    "quota",
    [
        Quota("ann"),
        Quota("a b", 1),
        Quota("ann", 0),
        Quota("ann", -1),
        Quota("ann", float("nan")),
        Quota("ann", None, 1e13),
    ],
)
def test_what_is_no_quota_is_refused(quota: Quota) -> None:
    with pytest.raises(Invalid):
        check_quota(quota)


def test_who_is_above_its_quota_waits_and_others_do_not() -> None:
    with serving(MemoryStore(), network=NetworkOptions(AccessLimits())) as served:
        access = served.service.engine.access
        url = served.url
        tokens = {}
        for name in ("greedy", "calm", "large"):
            access.add_grant(name, "all", "namespace:default")
            tokens[name] = access.create_token(name).token
        access.set_quota("greedy", requests_s=2)
        access.set_quota("large", bytes_out_s=1_000)
        with (
            tms.connect(url, token=tokens["greedy"], timeout_s=PATIENCE_S) as greedy,
            tms.connect(url, token=tokens["calm"]) as calm,
            tms.connect(url, token=tokens["large"], timeout_s=PATIENCE_S) as large,
        ):
            calm.create_topic("t", durability="written")
            calm.publish("t", b"x" * 3_000)
            with served.connect() as client:
                headers = {"Authorization": f"Bearer {tokens['greedy']}"}
                path = "/v2/access/whoami"
                statuses = []
                for _ in range(8):
                    answer = client.request("GET", path, **headers)
                    statuses.append(answer.status)
                    spoofed = client.request("GET", path, **headers, TMS_Peer="no instance")
                    assert spoofed.status == 403
                    if answer.status == 429:
                        assert answer.problem == "overloaded"
                        assert int(answer.headers["retry-after"]) >= 1
            assert statuses[0] == 200 and 429 in statuses
            began_s = time.monotonic()
            for _ in range(3):  # repeated by the client until they pass; at most two at once
                greedy.admin.access.whoami()
            assert time.monotonic() - began_s > 0.4
            for _ in range(50):
                calm.admin.access.whoami()
            began_s = time.monotonic()
            large.fetch("t", {0: "earliest"})
            large.admin.access.whoami()
            assert time.monotonic() - began_s > 1
            access.remove_quota("greedy")
            began_s = time.monotonic()
            for _ in range(100):  # 49 s with the quota
                greedy.admin.access.whoami()
            assert time.monotonic() - began_s < PATIENCE_S / 2
            with pytest.raises(NotFound):
                access.remove_quota("greedy")
            access.set_quota("*", requests_s=0.01)
            with (
                pytest.raises(Overloaded),
                tms.connect(url, token=tokens["calm"], timeout_s=PATIENCE_S) as bus,
            ):
                for _ in range(3):
                    bus.admin.access.whoami()


def test_who_follows_is_slowed_down_to_its_quota() -> None:
    with serving(MemoryStore(), network=NetworkOptions(AccessLimits())) as served:
        access = served.service.engine.access
        url = served.url
        tokens = {}
        for name in ("ann", "bob"):
            access.add_grant(name, "all", "namespace:default")
            tokens[name] = access.create_token(name).token
        with (
            tms.connect(url, token=tokens["bob"]) as bus,
            tms.connect(url, token=tokens["ann"]) as ann,
        ):
            bus.create_topic("t", durability="written")
            consumer = iter(ann.consumer("t", wait_s=30, bytes_max=5_000))
            bus.publish("t", b"first")
            assert next(consumer).value == b"first"
            access.set_quota("ann", bytes_out_s=20_000)
            began_s, count = time.monotonic(), 8
            for number in range(count):
                bus.publish("t", b"%d" % number + os.urandom(10_000))
            for number in range(count):
                assert next(consumer).value[:1] == b"%d" % number
            took_s = time.monotonic() - began_s
            assert served.service.metrics.followers == 1
            consumer.close()
    assert took_s > 1.5  # 80 KB, of which a second's worth passes without a wait


def test_a_principal_has_so_many_transactions_in_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the limit, other principals still begin transactions and a begun commit goes on; an
    engine without principals has no limit."""
    monkeypatch.setattr("tms.transactions.state.OPEN_MAX", 3)
    with serving(MemoryStore(), network=NetworkOptions(AccessLimits())) as served:
        access, url = served.service.engine.access, served.url
        tokens = [access.create_token(name).token for name in ("ann", "bob")]
        with (
            tms.connect(url, token=tokens[0], timeout_s=0.2) as ann,
            tms.connect(url, token=tokens[1]) as bob,
        ):
            begun = [ann.admin.transactions.begin(token=f"t{number}") for number in range(3)]
            with pytest.raises(Overloaded, match="3 transactions in progress") as raised:
                ann.admin.transactions.begin()
            assert raised.value.details["retry_after_s"] >= 1
            assert ann.admin.transactions.begin(token="t1") == begun[1]
            assert bob.admin.transactions.begin().outcome == "open"
            ann.admin.transactions.abort(begun[0].transaction_id)
            ann.admin.transactions.begin()
    with tms.open(tmp_path / "data") as bus:
        for _ in range(5):
            bus.admin.transactions.begin()
