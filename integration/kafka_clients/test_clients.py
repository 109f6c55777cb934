"""The contract of Kafka's clients in C, JavaScript, Go and Java: what one side publishes, the other
reads, whole and in the order of each key."""

from collections.abc import Iterable

import pytest

import tms
from integration.kafka_clients.programs import CLIENTS, Client, Member, Row
from integration.kafka_clients.service import KafkaService
from tests.kafka_kit import assert_same, by_key, messages_in
from tests.waiting import busily, until

pytestmark = pytest.mark.long
FLAGS = ("--kafka-partitions", "3")
READ_S = 60.0
HEADERS = (("trace", b"a1"), ("kind", b"order"))
ROWS: list[Row] = [
    *(Row(b"k%d" % (number % 7), b"value %d" % number, HEADERS[:1]) for number in range(200)),
    *(Row(None, b"without a key %d" % number, HEADERS) for number in range(5)),
    Row(b"k1", None),
    Row(b"k2", None, HEADERS),
    Row(b"k1", "größer".encode()),
]


@pytest.fixture(scope="module", params=CLIENTS, ids=lambda client: type(client).__name__)
def client(request: pytest.FixtureRequest) -> Client:
    found: Client = request.param
    return found


def publish_in_tms(service: KafkaService, topic: str, rows: Iterable[Row]) -> None:
    with tms.connect(service.url) as bus:
        for row in rows:
            bus.publish(topic, row.value, key=row.key, headers=dict(row.headers))


def in_tms(service: KafkaService, topic: str) -> list[Row]:
    """All messages as TMS's own consumer reads them."""
    found = messages_in(service.url, topic)
    return [Row(one.key, one.value, tuple(one.headers.items())) for one in found]


def read(client: Client, service: KafkaService, topic: str, group: str, count: int) -> list[Row]:
    with client.member(service.servers, topic, group, count) as member:
        member.wait(READ_S)
        return member.rows


@pytest.mark.parametrize(
    ("client", "codec"),
    [(client, codec) for client in CLIENTS for codec in ("default", *client.codecs)],
    indirect=["client"],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
    scope="module",
)
def test_tms_reads_what_a_client_publishes(
    client: Client, service: KafkaService, topic: str, codec: str
) -> None:
    client.produce(service.servers, topic, codec, ROWS)
    assert_same(in_tms(service, topic), ROWS)


def test_a_client_reads_what_tms_publishes(
    client: Client, service: KafkaService, topic: str
) -> None:
    with tms.connect(service.url) as bus:
        bus.create_topic(topic, partitions=3)
    publish_in_tms(service, topic, ROWS)
    assert_same(read(client, service, topic, f"group of {topic}", len(ROWS)), ROWS)


def test_a_member_goes_on_where_its_group_was(
    client: Client, service: KafkaService, topic: str
) -> None:
    client.produce(service.servers, topic, "default", ROWS)
    group, half = f"group of {topic}", len(ROWS) // 2
    first = read(client, service, topic, group, half)
    second = read(client, service, topic, group, len(ROWS) - half)
    assert len(first) == half
    assert_same(first + second, ROWS)


def test_two_members_share_the_partitions_and_one_gets_those_of_a_killed_one(
    client: Client, service: KafkaService, topic: str
) -> None:
    rows, to_both, to_one = (
        ROWS,
        *([Row(b"k%d" % key, b) for key in range(50)] for b in (b"2", b"1")),
    )
    client.produce(service.servers, topic, "default", rows)

    def member() -> Member:
        return client.member(service.servers, topic, f"group of {topic}", 1_000_000)

    with member() as first, member() as second:
        until(lambda: shared(first, second), "both have partitions", busily(READ_S))
        client.produce(service.servers, topic, "default", to_both)
        wanted = {*rows, *to_both}
        until(lambda: {*first.rows, *second.rows} >= wanted, "all is read", busily(READ_S))
        assert set(to_both) & set(first.rows) and set(to_both) & set(second.rows)
        second.kill()
        until(lambda: first.assigned == {0, 1, 2}, "one member has all", busily(READ_S))
        client.produce(service.servers, topic, "default", to_one)
        until(lambda: set(first.rows) >= set(to_one), "one reads all", busily(READ_S))
        published = by_key([*rows, *to_both, *to_one])
        assert {*first.rows, *second.rows} == {*wanted, *to_one}
        for one in first, second:
            for key, found in by_key(dict.fromkeys(one.rows)).items():
                assert found == [row for row in published[key] if row in found]


def shared(first: Member, second: Member) -> bool:
    one, other = first.assigned, second.assigned
    return bool(one and other) and not one & other and one | other == {0, 1, 2}
