"""Tests that schemathesis makes have ids of their own."""

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    """pytest leaves out of their ids which operation they are of, and of tests with the same id
    workers run one."""
    if not item.nodeid.endswith(item.name):
        _, _, params = item.name.partition("[")
        item._id = item.id.with_params(params.removesuffix("]"))
