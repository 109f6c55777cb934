"""Kafka's clients for Python, as they come, at a service that controls access, with and without
TLS: each publishes, and reads as a member of a group."""

import asyncio
import itertools
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from typing import Any

import aiokafka
import confluent_kafka
import kafka as kafka_python
import pytest
from aiokafka.errors import AuthenticationFailedError as AioRefused
from aiokafka.errors import TopicAuthorizationFailedError as AioForbidden
from confluent_kafka import KafkaError
from confluent_kafka import admin as confluent_admin
from kafka import errors as kafka_python_errors

from tests.access_kit import People
from tests.kafka_kit import Broker, KafkaConnection, kafka_serving
from tests.tls_kit import Authority
from tms.runtime.tls import ServerTls
from tms.server.service import AccessLimits

pytestmark = pytest.mark.filterwarnings("ignore:.*_text is deprecated:DeprecationWarning")
PATIENCE_S = 30.0
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
PROTOCOLS = ("SASL_PLAINTEXT", "SASL_SSL")
ROWS = [b"value %d" % number for number in range(50)]
numbers = itertools.count()


class Login:
    """A principal at a service, and the ways in which clients take that."""

    def __init__(self, broker: Broker, ca: str, mechanism: str, user: str, token: str) -> None:
        self.servers = f"localhost:{broker.address[1]}"
        self.protocol = PROTOCOLS[bool(ca)]
        self.ca = ca
        self.sasl = (mechanism, user, token)

    @property
    def confluent(self) -> dict[str, Any]:
        mechanism, user, token = self.sasl
        return {
            "bootstrap.servers": self.servers,
            "security.protocol": self.protocol,
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": token,
            **({"ssl.ca.location": self.ca} if self.ca else {}),
        }

    @property
    def python(self) -> dict[str, Any]:
        mechanism, user, token = self.sasl
        tls = {"ssl_context": ssl.create_default_context(cafile=self.ca)} if self.ca else {}
        return {
            "bootstrap_servers": self.servers,
            "security_protocol": self.protocol,
            "sasl_mechanism": mechanism,
            "sasl_plain_username": user,
            "sasl_plain_password": token,
            **tls,
        }


@pytest.fixture(scope="module", params=PROTOCOLS)
def secured(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Broker, str]]:
    if request.param == PROTOCOLS[0]:
        with kafka_serving(access=AccessLimits(), advertised="") as broker:
            yield broker, ""
        return
    authority = Authority(tmp_path_factory.mktemp("certificates"))
    tls = ServerTls(*authority.sign().pair)
    with kafka_serving(access=AccessLimits(), tls=tls) as broker:
        yield broker, str(authority.ca)


Login_of = Callable[..., Login]


@pytest.fixture
def login(secured: tuple[Broker, str]) -> Login_of:
    broker, ca = secured

    def made(mechanism: str, topic: str, *grants: str) -> Login:
        user = f"user-{next(numbers)}"
        people = People(broker.served)
        token = people.token(user, *(f"{grant} topic:{topic}" for grant in grants))
        return Login(broker, ca, mechanism, user, token)

    return made


# -- the clients: each publishes rows, and reads so many as a member of a group --------------------


def confluent(login: Login, topic: str) -> list[bytes | None]:
    administrator = confluent_admin.AdminClient(login.confluent)
    [made] = administrator.create_topics([confluent_admin.NewTopic(topic, 1)]).values()
    made.result(PATIENCE_S)
    producer = confluent_kafka.Producer({**login.confluent, "enable.idempotence": True})
    for value in ROWS:
        producer.produce(topic, value)
    assert producer.flush(PATIENCE_S) == 0
    settings = {"group.id": f"group of {topic}", "auto.offset.reset": "earliest"}
    consumer = confluent_kafka.Consumer({**login.confluent, **settings})
    consumer.subscribe([topic])
    found = [one for one in consumer.consume(len(ROWS), PATIENCE_S) if one.error() is None]
    consumer.close()
    return [one.value() for one in found]


def python(login: Login, topic: str) -> list[bytes | None]:
    producer = kafka_python.KafkaProducer(**login.python)
    for sent in [producer.send(topic, value) for value in ROWS]:
        sent.get(PATIENCE_S)
    producer.close()
    consumer = kafka_python.KafkaConsumer(
        topic,
        group_id=f"group of {topic}",
        auto_offset_reset="earliest",
        consumer_timeout_ms=int(PATIENCE_S * 1_000),
        **login.python,
    )
    found = [one.value for one in itertools.islice(consumer, len(ROWS))]
    consumer.close()
    return found


def aio(login: Login, topic: str) -> list[bytes | None]:
    async def both() -> list[bytes | None]:
        group = f"group of {topic}"
        begin = {"group_id": group, "auto_offset_reset": "earliest"}
        async with aiokafka.AIOKafkaProducer(enable_idempotence=True, **login.python) as producer:
            for value in ROWS:
                await producer.send(topic, value)
        async with (
            aiokafka.AIOKafkaConsumer(topic, **begin, **login.python) as consumer,
            asyncio.timeout(PATIENCE_S),
        ):
            return [(await consumer.getone()).value for _ in ROWS]

    return asyncio.run(both())


CLIENTS = {"confluent": confluent, "kafka-python": python, "aiokafka": aio}


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_does_what_its_principal_may(login: Login_of, client: str, mechanism: str) -> None:
    topic = f"topic-{next(numbers)}"
    known = login(mechanism, topic, "manage", "publish", "consume")
    assert CLIENTS[client](known, topic) == ROWS


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_client_is_told_that_its_token_is_wrong(login: Login_of, mechanism: str) -> None:
    wrong = login(mechanism, "none")
    wrong.sasl = (mechanism, "nobody", "wrong")
    errors: list[KafkaError] = []
    producer = confluent_kafka.Producer({**wrong.confluent, "error_cb": errors.append})
    began = time.monotonic()
    while not any(one.code() == KafkaError._AUTHENTICATION for one in errors):
        producer.poll(1.0)
        assert time.monotonic() - began < PATIENCE_S
    assert "tms token create" in str(errors)
    with pytest.raises(kafka_python_errors.KafkaError):
        kafka_python.KafkaProducer(bootstrap_timeout_ms=2_000, **wrong.python)

    async def begin() -> None:
        async with aiokafka.AIOKafkaProducer(**wrong.python):
            pass

    with pytest.raises((AioRefused, aiokafka.errors.KafkaConnectionError)):
        asyncio.run(begin())


def test_a_client_is_told_that_it_may_not(login: Login_of) -> None:
    topic = f"topic-{next(numbers)}"
    owner = login("PLAIN", topic, "all")
    confluent(owner, topic)
    reader = login("SCRAM-SHA-256", topic, "consume")
    reported: list[KafkaError] = []
    producer = confluent_kafka.Producer({**reader.confluent, "enable.idempotence": False})
    producer.produce(topic, b"x", on_delivery=lambda error, _: reported.append(error))
    producer.flush(PATIENCE_S)
    assert [one.code() for one in reported] == [KafkaError.TOPIC_AUTHORIZATION_FAILED]
    stranger = login("SCRAM-SHA-256", "another", "consume")
    settings = {**stranger.confluent, "group.id": "g", "topic.metadata.refresh.interval.ms": 500}
    consumer = confluent_kafka.Consumer(settings)
    consumer.subscribe([topic])
    codes = set()
    for _ in range(20):
        told = consumer.poll(1.0)
        if told is not None:
            codes.add(told.error().code())
            break
    consumer.close()
    assert codes == {KafkaError.TOPIC_AUTHORIZATION_FAILED}

    async def publish() -> None:
        async with aiokafka.AIOKafkaProducer(**reader.python) as one:
            await one.send_and_wait(topic, b"x")

    with pytest.raises(AioForbidden):
        asyncio.run(publish())


@pytest.mark.parametrize("secured", PROTOCOLS[:1], indirect=True)
def test_transactions_are_those_of_their_principal(login: Login_of) -> None:
    topic = f"topic-{next(numbers)}"
    first, second = (login("SCRAM-SHA-512", topic, "all") for _ in range(2))
    id = f"id of {topic}"
    producer = confluent_kafka.Producer({**first.confluent, "transactional.id": id})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce(topic, b"x")
    producer.commit_transaction(PATIENCE_S)
    other = confluent_kafka.Producer({**second.confluent, "transactional.id": id})
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        other.init_transactions(PATIENCE_S)
    code = refused.value.args[0].code()
    assert code == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_a_name_in_a_certificate_is_a_principal(tmp_path: Any) -> None:
    authority = Authority(tmp_path)
    tls = ServerTls(*authority.sign().pair, str(authority.ca), required=False)
    with kafka_serving(access=AccessLimits(), tls=tls) as broker:
        broker.served.service.engine.access.add_grant("ann", "all", "topic:certified")
        cert, key = authority.sign("ann").pair
        settings = {
            "bootstrap.servers": f"localhost:{broker.address[1]}",
            "security.protocol": "SSL",
            "ssl.ca.location": str(authority.ca),
            "ssl.certificate.location": cert,
            "ssl.key.location": key,
        }
        administrator = confluent_admin.AdminClient(settings)
        [made] = administrator.create_topics([confluent_admin.NewTopic("certified", 1)]).values()
        made.result(PATIENCE_S)
        [made] = administrator.create_topics([confluent_admin.NewTopic("not-mine", 1)]).values()
        with pytest.raises(confluent_kafka.KafkaException) as refused:
            made.result(PATIENCE_S)
        assert refused.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_a_new_connection_by_a_certificate_brings_no_new_quota(tmp_path: Any) -> None:
    authority = Authority(tmp_path)
    tls = ServerTls(*authority.sign().pair, str(authority.ca), required=False)
    context = ssl.create_default_context(cafile=str(authority.ca))
    context.load_cert_chain(*authority.sign("hasty").pair)
    with kafka_serving(access=AccessLimits(), tls=tls) as broker:
        broker.served.service.engine.access.set_quota("hasty", requests_s=2)

        def connect() -> KafkaConnection:
            plain = socket.create_connection(broker.address, PATIENCE_S)
            return KafkaConnection(context.wrap_socket(plain, server_hostname="localhost"))

        began = time.monotonic()
        for _ in range(6):
            with connect() as kafka:
                assert not kafka.ask("DescribeCluster", 0).error_code
        assert time.monotonic() - began > 1.0  # 2 at once, then 2 a second
