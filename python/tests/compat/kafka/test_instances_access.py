"""Access control at several brokers: a token, a grant and a transactional id count at each of
them."""

from collections.abc import Iterator

import confluent_kafka
import pytest

from tests.access_kit import People
from tests.compat.kafka.test_sasl import authenticate
from tests.kafka_brokers_kit import Brokers, brokers
from tests.kafka_kit import ENDED, create_topic, metadata
from tests.waiting import PATIENCE_S
from tms.compat.kafka.errors import ErrorCode
from tms.errors import StorageUnavailable
from tms.server.service import AccessLimits

PARTITIONS = 8


@pytest.fixture(scope="module")
def three() -> Iterator[Brokers]:
    with brokers("a", "b", "c", access=AccessLimits()) as three:
        yield three


@pytest.fixture(scope="module")
def people(three: Brokers) -> People:
    return People(three.all.served["a"])


def settings(three: Brokers, principal: str, token: str) -> dict[str, object]:
    return {
        "bootstrap.servers": three.servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": principal,
        "sasl.password": token,
    }


def test_a_token_and_its_grants_count_at_every_broker(three: Brokers, people: People) -> None:
    token = people.token("ann", "manage topic:orders", "observe topic:orders")
    for id in "abc":
        with three.broker(id).connect("ann", token) as kafka:
            assert create_topic(kafka, "payments").error_code == (
                ErrorCode.TOPIC_AUTHORIZATION_FAILED
            )
            made = create_topic(kafka, "orders").error_code
            assert made == (ErrorCode.NONE if id == "a" else ErrorCode.TOPIC_ALREADY_EXISTS)
            assert not metadata(kafka, "orders").error_code


def test_a_revoked_token_ends_connections_of_other_brokers(three: Brokers, people: People) -> None:
    people.access.add_grant("bob", "observe", "topic:orders")
    made = people.access.create_token("bob")
    with three.broker("c").connect("bob", made.token) as kafka:
        assert not metadata(kafka, "orders").error_code
        people.access.revoke_token(made.id)
        with pytest.raises(ENDED):
            metadata(kafka, "orders")


def test_transactions_of_a_principal_span_brokers_and_are_closed_to_others(
    three: Brokers, people: People
) -> None:
    grants = ("publish topic:ledger", "observe topic:ledger", "manage topic:ledger")
    ann, eve = (people.token(name, *grants) for name in ("ann-tx", "eve-tx"))
    with three.broker("b").connect("ann-tx", ann) as kafka:
        assert not create_topic(kafka, "ledger", PARTITIONS).error_code
    producer = confluent_kafka.Producer(
        settings(three, "ann-tx", ann) | {"transactional.id": "ledger"}
    )
    producer.init_transactions(PATIENCE_S)
    for _ in range(3):
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            producer.produce("ledger", b"x", partition=partition)
        producer.commit_transaction(PATIENCE_S)
    other = confluent_kafka.Producer(
        settings(three, "eve-tx", eve) | {"transactional.id": "ledger"}
    )
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        other.init_transactions(PATIENCE_S)
    assert refused.value.args[0].code() == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_a_broker_that_may_have_old_grants_allows_nothing(
    three: Brokers, people: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is cut off from the store: who may do this may have changed."""
    token = people.token("joe", "all topic:orders")
    broker = three.broker("b")
    with broker.connect("joe", token) as kafka:
        assert not metadata(kafka, "orders").error_code

        async def confirm() -> None:
            raise StorageUnavailable("The store does not answer.")

        ownership = broker.served.service.ownership
        monkeypatch.setattr(ownership, "confirm", confirm)
        assert metadata(kafka, "orders").error_code == ErrorCode.KAFKA_STORAGE_ERROR
        made = create_topic(kafka, "orders").error_code
        assert made == ErrorCode.KAFKA_STORAGE_ERROR
        for mechanism in ("PLAIN", "SCRAM-SHA-256"):
            with broker.connect() as other, pytest.raises(ENDED):
                authenticate(other, mechanism, "joe", token)
        monkeypatch.undo()
        assert not metadata(kafka, "orders").error_code
