"""The service that a module of this room shares, unless it starts one with bounds of its own."""

from collections.abc import Iterator

import pytest

from tests.http_kit import Served, serving


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as running:
        yield running
