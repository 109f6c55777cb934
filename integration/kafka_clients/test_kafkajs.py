"""KafkaJS beyond the contract: transactions with offsets, and the calls of its administrator."""

import pytest

import tms
from integration.kafka_clients.install import javascript_program
from integration.kafka_clients.programs import KafkaJS
from integration.kafka_clients.running import Tool, run
from integration.kafka_clients.service import KafkaService
from tests.kafka_kit import messages_in

pytestmark = pytest.mark.long
CALLS = {"describeAcls": "SECURITY_DISABLED"}  # that end otherwise than with "ok"


@pytest.fixture(scope="module")
def client() -> KafkaJS:
    return KafkaJS()


def test_transactions_move_offsets_with_their_messages(service: KafkaService, topic: str) -> None:
    group = f"group of {topic}"
    run([*javascript_program(), "transactions", service.servers, topic, group])
    values = {message.value for message in messages_in(service.url, topic)}
    with tms.connect(service.url) as bus:
        committed = {position.number for position in bus.positions(topic, group=group).values()}
    assert values == {b"%s %d" % (kept, n) for kept in (b"kept", b"kept too") for n in (1, 2, 3)}
    assert committed == {len("kept too")}


def test_the_calls_of_the_administrator(service: KafkaService, topic: str, client: KafkaJS) -> None:
    group = f"group of {topic}"
    with tms.connect(service.url) as bus:
        bus.create_topic(topic, partitions=1)
        bus.publish_many(topic, [b"%d" % number for number in range(10)])
    with client.member(service.servers, topic, group, 5) as member:
        member.wait()
    with Tool(javascript_program(), "administer", service.servers, topic, group) as administrator:
        administrator.wait()
    outcomes = {one["call"]: one["outcome"] for one in administrator.told}
    assert len(outcomes) == 18
    assert {call: how for call, how in outcomes.items() if how != "ok"} == CALLS
