"""The clients of `faults.clients` against a real service that is killed."""

from pathlib import Path

import pytest

from tests.faults.clients import STEP, Clients, free_port
from tests.faults.service import Service


@pytest.mark.timeout(200)
@pytest.mark.parametrize("kills", [2, pytest.param(6, marks=pytest.mark.long)])
def test_faults_2_and_21_clients_of_a_service_that_is_killed_see_nothing_wrong(
    kills: int, tmp_path: Path
) -> None:
    port = free_port()
    service = Service(tmp_path / "data", "--port", str(port))
    try:
        clients = Clients(f"http://127.0.0.1:{port}")
        clients.start()
        for _ in range(kills):
            clients.get_on()
            service.kill()
            clients.killed()
            service = Service(tmp_path / "data", "--port", str(port))
        clients.get_on()
        assert clients.check() >= (kills + 1) * STEP.commits
    finally:
        service.kill()
