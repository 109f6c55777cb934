"""Fault 29 for every kind of request: a crowd that asks for as much memory as possible takes no
more of the address space than a bound, is answered, delays no other client, and leaves no memory
taken.

The bound is on the address space of the service beyond that of an idle one, so it counts more than
the used memory: heaps of threads, and pages that were given back, are in it.
"""

import resource
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.faults.crowd import exchange
from tests.faults.hostile import KINDS, MIB, TOPICS, call, post, prepare
from tests.faults.service import Service, within
from tests.http_kit import Client, request
from tests.run_seed import drawn
from tests.waiting import PATIENCE_S
from tms.api import routes

CLIENTS = 20
BOUND_BYTES = (
    768 * MIB
)  # after requests of all kinds; `docs/operations.md` lists the memory of each part
LEFT_BYTES = 96 * MIB  # write buffers and the cache, which stay, and fragments between them
STALLING = ("publish_blocks", "commits", "fetch_filtered", "erase")
STALL_S, TRIES = 2.0, 4
CLEAR = frozenset((200, 201, 204, 400, 404, 405, 409, 410, 413, 414, 415, 422, 429, 431, 503))
SMALL = post(f"{TOPICS}/in/messages", b'{"messages":[{"value":"small"}]}')
ALIVE = request("GET", routes.LIVEZ)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service that may not have more address space than the bound allows."""
    with Service(tmp_path_factory.mktemp("hostile") / "data") as running:
        prepare(running)
        with ThreadPoolExecutor(CLIENTS) as clients:  # so that all its threads exist
            list(clients.map(lambda _: call(running, request("GET", TOPICS)), range(200)))
        bound = running.address_space_bytes() + BOUND_BYTES
        resource.prlimit(running.pid, resource.RLIMIT_AS, (bound, resource.RLIM_INFINITY))
        yield running
        assert running.stop() == 0


class Waiting:
    """The longest time for which the event loop keeps a request waiting that needs nothing else."""

    def __init__(self, service: Service) -> None:
        self.longest_s = 0.0
        self.statuses: set[int] = set()
        self._address = service.address
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)

    def __enter__(self) -> "Waiting":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def _ask(self) -> None:
        with Client(self._address, 60) as client:
            while not self._stop.wait(0.01):
                began = time.monotonic()
                client.send(ALIVE)
                self.statuses.add(client.answer().status)
                self.longest_s = max(self.longest_s, time.monotonic() - began)


def crowd(service: Service, requests: list[bytes], count: int = CLIENTS) -> Counter[int]:
    """The number of answers by status."""
    asked = [requests[n % len(requests)] for n in range(max(count, len(requests)))]
    with ThreadPoolExecutor(CLIENTS) as clients:
        return Counter(clients.map(lambda one: exchange(service.address, one), asked))


@pytest.mark.parametrize("kind", drawn("hostile kinds", KINDS, 3))
def test_fault_29_every_kind_of_request_is_answered_within_the_bound(
    kind: str, service: Service
) -> None:
    with Waiting(service) as waiting:
        statuses = crowd(service, KINDS[kind]())
    assert statuses.keys() <= CLEAR, (statuses, service.lines[-3:])
    assert waiting.statuses == {200}
    assert call(service, SMALL).status == 200
    assert call(service, request("GET", f"{TOPICS}/in/messages?start=latest")).status == 200
    assert service.ready()


@pytest.mark.parametrize("kind", drawn("stalls", STALLING, 1))
def test_a_hostile_crowd_does_not_stall_the_event_loop(kind: str, service: Service) -> None:
    longest = []
    for _ in range(TRIES):  # the machine may be busy
        with Waiting(service) as waiting:
            crowd(service, KINDS[kind]()[:2])
        longest.append(waiting.longest_s)
        if waiting.longest_s < STALL_S:
            return
    raise AssertionError(f"a request waited for {min(longest):.1f} s at best")


@pytest.mark.parametrize(
    "crowds",
    drawn(
        "crowds whose memory comes back", [("settle",), ("publish_headers", "publish_blocks")], 1
    ),
)
def test_memory_comes_back_after_crowds(crowds: tuple[str, ...], tmp_path: Path) -> None:
    with Service(tmp_path / "data", "--cache-bytes", str(MIB)) as service:
        prepare(service)
        crowd(service, [SMALL])
        service.forget_peak()
        before = service.resident_bytes()
        for kind in crowds:
            crowd(service, KINDS[kind]()[:6], 6)
        assert service.peak_resident_bytes() > before
        within(PATIENCE_S, lambda: service.resident_bytes() < before + LEFT_BYTES)
        assert service.stop() == 0
