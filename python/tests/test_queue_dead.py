"""Dead letters: each message becomes one, whatever fails and however large it is."""

import pytest

from tests.test_queues import DEAD, World
from tms.engine import Engine
from tms.errors import TMSError
from tms.store.faulty import FaultyStore


class OneFailingWrite(World):
    """A write of its store fails, once."""

    def open(self) -> None:
        self.faulty = FaultyStore(self.store)
        self.engine = Engine(self.faulty, self.clock)
        self.queues = self.engine.queues


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("count", [10, 40])
def test_one_failing_write_makes_no_dead_letter_twice(count: int, stored: bool) -> None:
    failed = 0
    values = sorted(b"%d" % n for n in range(count))
    for number in range(1, 12):
        world = OneFailingWrite()
        world.publish(*values)
        world.reject(*world.receive())
        world.faulty.fail_write(number, stored=stored)
        for _ in range(5):
            try:
                world.queues.tidy()
            except TMSError:
                failed += 1
                world.engine.maintenance.recover()
        assert world.info().dying == 0
        assert sorted(one.value or b"" for one in world.read(DEAD)) == values
    assert failed > 3
