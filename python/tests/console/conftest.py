"""The console's tests share, in each module, a browser and a service: one without access control,
one with it, or three instances."""

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser

from tests.access_kit import People
from tests.cluster_kit import Instances, instances
from tests.console_kit import Visitor, chromium, console_served
from tests.http_kit import Served
from tms.server.service import AccessLimits


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with console_served() as running:
        yield running


@pytest.fixture(scope="module")
def guarded() -> Iterator[People]:
    """A service that wants tokens, and gives some."""
    with console_served(AccessLimits(audit=True)) as running:
        yield People(running)


@pytest.fixture(scope="module")
def three() -> Iterator[Instances]:
    """Three instances, one of which coordinates."""
    with instances("a", "b", "c") as all:
        all.coordinator()
        yield all


@pytest.fixture
def visiting(browser: Browser) -> Iterator[Callable[..., Visitor]]:
    """Makes visitors of URLs. The test fails if one of them has noted a problem."""
    made: list[Visitor] = []

    def visitor(*urls: str) -> Visitor:
        made.append(Visitor(browser, *urls))
        return made[-1]

    yield visitor
    for one in made:
        one.close()
    problems = [problem for one in made for problem in one.problems]
    assert not problems, problems


@pytest.fixture
def visitor(served: Served, visiting: Callable[..., Visitor]) -> Visitor:
    """A visitor of the service without access control."""
    return visiting(served.url)
