"""`tms.aio` has everything that `tms` has, with the same parameters."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import tms
import tms.aio
from tms.client.aio.bus import AsyncBus
from tms.client.aio.consumer import AsyncConsumer
from tms.client.aio.producer import AsyncProducer
from tms.client.aio.queues import AsyncQueue
from tms.client.aio.table import AsyncTable, AsyncTableWrites
from tms.client.aio.transaction import AsyncTransaction
from tms.client.aio.worker import AsyncWorker
from tms.client.client import Bus
from tms.client.consumer import Consumer
from tms.client.producer import Producer
from tms.client.queue import Queue
from tms.client.table import Table, TableWrites
from tms.client.transaction import Transaction
from tms.client.worker import Worker

PAIRS = [
    (Bus, AsyncBus),
    (Producer, AsyncProducer),
    (Consumer, AsyncConsumer),
    (Queue, AsyncQueue),
    (Worker, AsyncWorker),
    (Transaction, AsyncTransaction),
    (Table, AsyncTable),
    (TableWrites, AsyncTableWrites),
]
# For those who run a service, and for participants: no part of what programs call.
INTERNAL = {
    Bus: {"admin"},
    Consumer: {"committed"},
    Queue: {"leases", "name", "patience", "settlement"},
    TableWrites: {"changes", "is_of", "persist", "post_commit", "roll_back", "start"},
}
# The way from an asynchronous object to its synchronous one, and what that one has as an attribute.
ONLY_ASYNC = {AsyncQueue: {"queue", "close"}, AsyncTransaction: {"run"}, AsyncTable: {"name"}}


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


@pytest.mark.parametrize(("kind", "twin"), PAIRS, ids=lambda kind: kind.__name__)
def test_asyncio_has_the_same_names(kind: type, twin: type) -> None:
    assert public(kind) - INTERNAL.get(kind, set()) == public(twin) - ONLY_ASYNC.get(twin, set())


def parameters(function: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
    return [
        (one.name, one.default, one.kind)
        for one in inspect.signature(function, follow_wrapped=True).parameters.values()
        if one.name != "self"
    ]


@pytest.mark.parametrize(
    ("kind", "twin", "name"),
    [
        (kind, twin, name)
        for kind, twin in PAIRS
        for name in sorted(public(kind) & public(twin))
        if inspect.isfunction(getattr(kind, name)) and inspect.isfunction(getattr(twin, name))
    ],
    ids=str,
)
def test_asyncio_takes_the_same_parameters(kind: type, twin: type, name: str) -> None:
    assert parameters(getattr(twin, name)) == parameters(getattr(kind, name))


@pytest.mark.parametrize("name", ["open", "connect"])
def test_both_are_opened_alike(name: str) -> None:
    assert parameters(getattr(tms.aio, name)) == parameters(getattr(tms, name))
