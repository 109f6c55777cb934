"""`tms serve --workers`: worker processes that are killed or paused under load, and a killed
supervisor; the history that the clients saw is checked."""

import os
import signal
from pathlib import Path

import pytest

import tms
from tests.faults.clients import Clients
from tests.faults.mending import fsck
from tests.faults.service import Service, within
from tests.waiting import PATIENCE_S

SESSION_S = 1.0
FLAGS = ("--workers", "2", "--session-s", str(SESSION_S))
pytestmark = pytest.mark.timeout(240)


def workers(service: Service) -> dict[str, int]:
    """The processes of the workers, by their addresses' instances."""
    children = Path(f"/proc/{service.pid}/task/{service.pid}/children").read_text().split()
    return {str(number): int(pid) for number, pid in enumerate(children)}


def instances(service: Service) -> set[str]:
    with tms.connect(service.url, timeout_s=5) as bus:
        view = bus._transport.cluster.view()  # type: ignore[union-attr]
    return {one.id for one in view.instances}


def all_there(service: Service) -> bool:
    return len(workers(service)) == 2 and service.ready() and len(instances(service)) == 2


@pytest.mark.parametrize("times", [1, pytest.param(3, marks=pytest.mark.long)])
def test_workers_are_killed_and_paused_under_load_and_nothing_is_lost(
    tmp_path: Path, times: int
) -> None:
    with Service(tmp_path / "data", *FLAGS) as service:
        within(PATIENCE_S, lambda: all_there(service))
        clients = Clients(service.url)
        clients.start()
        for place, number in times * ((0, signal.SIGKILL), (1, signal.SIGSTOP)):
            clients.get_on()
            pid = [*workers(service).values()][place]
            os.kill(pid, number)
            clients.killed()
            within(PATIENCE_S, lambda pid=pid: pid not in workers(service).values())
            within(PATIENCE_S, lambda: all_there(service))
        clients.get_on()
        assert clients.check() > 10
        assert service.stop() == 0
    code, said = fsck(tmp_path / "data")
    assert code == 0, said


def test_workers_end_with_their_supervisor_and_another_one_goes_on(tmp_path: Path) -> None:
    with Service(tmp_path / "data", *FLAGS) as service:
        within(PATIENCE_S, lambda: all_there(service))
        clients = Clients(service.url)
        clients.start()
        clients.get_on()
        pids = workers(service).values()
        service.kill()
        clients.killed()
        within(PATIENCE_S, lambda: not any(_lives(pid) for pid in pids))
        port = str(service.address[1])
        with Service(tmp_path / "data", *FLAGS, "--port", port) as again:
            within(PATIENCE_S, lambda: all_there(again))
            clients.get_on()
            assert clients.check() > 5


def test_one_process_and_several_read_the_same_directory(tmp_path: Path) -> None:
    sent = []
    for flags in ((), FLAGS, ()):
        with Service(tmp_path / "data", *flags) as service:
            with tms.connect(service.url) as bus:
                bus.create_topic("t", partitions=4)
                for number in range(20):
                    value = b"%d %d" % (len(sent), number)
                    bus.publish("t", value, partition=number % 4)
                    sent.append(value)
                with bus.transaction() as tx:
                    for partition in range(4):
                        tx.send("t", b"tx %d" % len(sent), partition=partition)
                        sent.append(b"tx %d" % len(sent))
                found = [message.value for message in bus.consumer("t", stop_at_end=True)]
                assert sorted(found) == sorted(sent)
            assert service.stop() == 0


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
