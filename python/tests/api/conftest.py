"""Unique ids for the tests that schemathesis makes."""

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    """Add the operation to the id: pytest leaves it out, and of tests with equal ids workers run
    only one."""
    if not item.nodeid.endswith(item.name):
        _, _, params = item.name.partition("[")
        item._id = item.id.with_params(params.removesuffix("]"))
