"""Tests that schemathesis makes have ids of their own."""

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    """pytest leaves out of their ids which operation they are of, and of tests with the same id
    workers run one."""
    if not item.nodeid.endswith(item.name):
        item._nodeid = item.nodeid + item.name[item.name.index("[") :]
