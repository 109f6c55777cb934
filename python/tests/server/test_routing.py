"""The route of a request is a value: one instance answers it, all others know which."""

import pytest

from tests.cluster_kit import Instances, instances
from tests.waiting import until
from tms.api.operations import OPERATIONS, TRANSACTIONS
from tms.errors import NotOwner
from tms.server.routing import At, Here, kept_by, named, route_to

PATH = (b"default", b"orders", b"billing")


@pytest.mark.parametrize(
    ("operation", "kept"),
    [
        ("transactions.begin", TRANSACTIONS),
        ("queues.ack", ("queue", "orders", "billing")),
        ("topics.describe_topic", None),
        ("peers.load", None),
    ],
)
def test_an_operation_and_its_path_name_the_role_or_shard(operation: str, kept: object) -> None:
    assert kept_by(OPERATIONS[operation], PATH) == kept


def settled(all: Instances) -> bool:
    """True if every shard is held, and each once."""
    engines = [served.service.engine for served in all.served.values()]
    count = engines[0].topics.shards.count
    held = sorted(number for engine in engines for number in engine.shards.held)
    return held == list(range(count))


def test_one_instance_answers_and_all_others_route_to_it() -> None:
    with instances("a", "b", "c") as all:
        all.coordinator()
        until(lambda: settled(all), "every shard is held")
        engines = {id: served.service.engine for id, served in all.served.items()}
        for kept in (TRANSACTIONS, *(("group", "", f"g{number}") for number in range(20))):
            routes = {id: route_to(engine, kept) for id, engine in engines.items()}
            [answers] = [id for id, route in routes.items() if route == Here()]
            others = {route for id, route in routes.items() if id != answers}
            assert others == {At(answers, all.url(answers))}


def test_the_owner_that_an_error_names_is_found_among_the_instances() -> None:
    with instances("a", "b") as all:
        all.coordinator()
        engine = all.served["a"].service.engine
        until(lambda: len(engine.cluster.view.instances) == 2, "they see each other")
        assert named(engine, NotOwner("", owner="b")) == At("b", all.url("b"))
        for owner in ("a", "gone", None):
            assert named(engine, NotOwner("", owner=owner)) is None
