"""Fault 20, and fault 1 over the network: lost, repeated and reordered requests, and a service that
is killed again and again, under clients that repeat requests with unknown outcomes."""

from pathlib import Path
from random import Random

import tms
from tests.faults.history import History, read_all, value_of
from tests.faults.load import Load
from tests.faults.service import Service, within
from tests.proxy import Fault, Proxy
from tests.waiting import PATIENCE_S

TOPIC = "load"
SEED = 20
QUICK = [Fault.LOSE_REQUEST, Fault.LOSE_ANSWER, Fault.HALF_ANSWER, Fault.TWICE, Fault.TRICKLE]
SLOW = [Fault.SWALLOW_ANSWER, Fault.LATER]  # each costs a time-out
KILLS = 5


def test_fault_20_each_message_is_stored_once_under_its_first_id(
    fast_path: Path,
) -> None:
    random = Random(SEED)
    script = [fault for fault in QUICK for _ in range(8)] + SLOW * 2
    random.shuffle(script)
    with (
        Service(fast_path / "data") as service,
        Proxy(service.url) as proxy,
        Load(proxy.url, TOPIC, publishers=3, timeout_s=9) as load,
    ):
        within(PATIENCE_S, lambda: load.acknowledged() > 20)
        for fault in script:
            count = load.acknowledged()
            proxy.script(fault)
            within(PATIENCE_S, lambda count=count: load.acknowledged() > count + 3)  # type: ignore[misc]
        within(PATIENCE_S, lambda: proxy.done)
        load.stop()
        assert not load.errors, load.errors
        with tms.connect(service.url) as bus:
            messages = read_all(bus, TOPIC)
        load.history.check(messages)
        assert len(messages) == len(load.history.tried)
        assert service.stop() == 0


def test_fault_20_a_producer_with_requests_in_flight_keeps_its_order(
    fast_path: Path,
) -> None:
    random = Random(SEED)
    with (
        Service(fast_path / "data") as service,
        Proxy(service.url) as proxy,
        tms.connect(proxy.url, timeout_s=9) as bus,
    ):
        bus.create_topic(TOPIC, durability="written")
        history = History()
        with bus.producer(TOPIC, batch_bytes=2_000, in_flight_max=4) as producer:
            for fault in random.sample(QUICK * 8, 40) + SLOW:
                proxy.script(fault)
                for _ in range(30):
                    number = len(history.tried)
                    history.tried.append(number)
                    producer.send(value_of(0, number, 100 + number % 400), partition=0)
                producer.flush()
        with tms.connect(service.url) as direct:
            messages = read_all(direct, TOPIC)
        assert list(history.check_order(messages)) == history.tried
        assert service.stop() == 0


def test_fault_1_a_killed_and_restarted_service_loses_and_repeats_nothing(
    fast_path: Path,
) -> None:
    data = fast_path / "data"
    service = Service(data)
    try:
        with (
            Proxy(service.url) as proxy,
            Load(proxy.url, TOPIC, publishers=3, timeout_s=60) as load,
        ):
            for _ in range(KILLS):
                count = load.acknowledged()
                within(PATIENCE_S, lambda count=count: load.acknowledged() > count + 40)  # type: ignore[misc]
                service.kill()
                service = Service(data)
                proxy.lead_to(service.url)
            count = load.acknowledged()
            within(PATIENCE_S, lambda: load.acknowledged() > count + 40)
            load.stop()
            assert not load.errors, load.errors
        assert service.stop() == 0
    finally:
        if service.running():
            service.kill()
    with tms.open(data) as bus:
        messages = read_all(bus, TOPIC)
        load.history.check(messages)
        assert len(messages) == len(load.history.tried)
