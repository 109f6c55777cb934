"""Real clients of a real service that is killed: see `faults.clients`."""

import time
from pathlib import Path
from random import Random

import pytest

from tests.faults.clients import Clients, free_port
from tests.faults.service import Service

KILLS = 3
SECONDS = 7.0


@pytest.mark.timeout(200)
def test_faults_2_and_21_clients_of_a_service_that_is_killed_see_nothing_wrong(
    tmp_path: Path,
) -> None:
    port, random = free_port(), Random(21)
    service = Service(tmp_path / "data", "--port", str(port))
    try:
        clients = Clients(f"http://127.0.0.1:{port}")
        clients.start()
        for _ in range(KILLS):
            time.sleep(SECONDS / (KILLS + 1) * random.uniform(0.6, 1.4))
            service.kill()
            clients.killed()
            service = Service(tmp_path / "data", "--port", str(port))
        time.sleep(SECONDS / (KILLS + 1))
        assert clients.check() > 50, "hardly anything happened"
    finally:
        service.kill()
