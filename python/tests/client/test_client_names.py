"""The names in `import tms`, their representations, and their options."""

import asyncio
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import get_type_hints

import pytest

import tms
import tms.aio
from tests.http_kit import serving
from tms.engine.config import EngineConfig, EngineOptions
from tms.model.queue import QueueOptions, QueueSettings


def run(code: str) -> None:
    """Run code in a fresh interpreter; fails if it fails."""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120, text=True)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("module", [tms, tms.aio], ids=["tms", "tms.aio"])
def test_every_name_is_reachable_after_an_import(module: ModuleType) -> None:
    run(
        f"import {module.__name__} as offered\n"
        "for name in offered.__all__:\n"
        "    found = getattr(offered, name)\n"
        "    assert name.startswith('__') or found.__name__.split('.')[-1] == name, name\n"
    )


def test_errors_are_reachable_from_the_package() -> None:
    run("import tms\nassert issubclass(tms.errors.TopicNotFound, tms.TMSError)")


def test_importing_the_package_loads_neither_engine_nor_arrow() -> None:
    run(
        "import sys, tms\n"
        "heavy = {'pyarrow', 'plyvel', 'asyncio', 'tms.engine.engine', 'tms.client.client'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )


def test_options_are_the_fields_of_what_is_made_of_them() -> None:
    assert get_type_hints(EngineOptions) == get_type_hints(EngineConfig)
    assert list(get_type_hints(EngineOptions)) == [field.name for field in fields(EngineConfig)]
    assert set(get_type_hints(QueueOptions)) == {field.name for field in fields(QueueSettings)}


def test_objects_say_what_they_are_and_how_they_stand(tmp_path: Path) -> None:
    bus = tms.open(tmp_path)
    assert repr(bus) == f"<Bus {tmp_path}>"
    bus.create_topic("orders", partitions=6)
    bus.publish("orders", b"hidden", key=b"key", partition=0)
    with bus.producer("orders") as producer:
        assert repr(producer) == "<Producer to orders, 0 requests under way>"
    assert repr(producer) == "<Producer to orders closed>"
    with bus.consumer("orders", stop_at_end=True) as consumer:
        assert repr(consumer) == (
            "<Consumer of orders at 0 earliest, 1 earliest, 2 earliest, 3 earliest and 2 more>"
        )
    member = bus.consumer("orders", group="billing", partitions=[5])
    assert repr(member) == "<Consumer of orders for billing at 5 earliest>"
    member.close()
    assert repr(member).endswith(" closed>")
    assert repr(bus.consumer("orders", group="g")) == "<Consumer of orders for g>"
    assert repr(bus.queue("orders", group="billing")) == "<Queue billing of orders>"
    table = bus.table("stock")
    assert repr(table) == "<Table stock>"
    with bus.view("orders") as view:
        assert repr(view) == "<View of orders, 1 keys, current>"
    assert repr(view) == "<View of orders, 1 keys, closed>"
    with bus.transaction() as tx:
        assert repr(tx) == "<Transaction without id, open, 0 messages>"
        tx.send("orders", b"hidden")
        writes = table.within(tx)
        writes.put(b"key", b"hidden")
        assert repr(writes) == "<TableWrites of stock, 1 keys written>"
        assert repr(tx) == f"<Transaction {tx.id}, open, 1 messages>"
    assert repr(tx).endswith(", over>")
    bus.close()
    assert repr(bus) == f"<Bus {tmp_path} closed>"


def test_so_do_those_for_asyncio(tmp_path: Path) -> None:
    async def looked() -> None:
        async with tms.aio.open(tmp_path) as bus:
            assert repr(bus) == f"<AsyncBus {tmp_path}>"
            await bus.create_topic("orders")
            assert repr(bus.producer("orders")) == "<AsyncProducer to orders, 0 requests under way>"
            assert repr(bus.consumer("orders")) == "<AsyncConsumer of orders>"
            assert repr(await bus.queue("orders", group="g")) == "<AsyncQueue g of orders>"
            assert repr(bus.table("stock")) == "<AsyncTable stock>"
            async with bus.transaction() as tx:
                assert repr(tx) == "<AsyncTransaction without id, open, 0 messages>"
                writes = await bus.table("stock").within(tx)
                assert repr(writes) == "<AsyncTableWrites of stock, 0 keys written>"
        assert repr(bus).endswith(" closed>")

    asyncio.run(looked())


def test_a_bus_over_http_names_the_service() -> None:
    with serving() as served, tms.connect(f"127.0.0.1:{served.address[1]}") as bus:
        assert repr(bus) == f"<Bus http://127.0.0.1:{served.address[1]}>"
