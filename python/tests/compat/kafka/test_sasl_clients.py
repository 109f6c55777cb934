"""Kafka's clients for Python, as they come, at a service that controls access, with and without
TLS: each publishes, and reads as a member of a group."""

import asyncio
import itertools
import socket
import ssl
import time
from collections.abc import Callable, Iterator

import aiokafka
import confluent_kafka
import kafka as kafka_python
import pytest
from aiokafka.errors import AuthenticationFailedError as AioRefused
from aiokafka.errors import TopicAuthorizationFailedError as AioForbidden
from confluent_kafka import KafkaError
from kafka import errors as kafka_python_errors

from tests.access_kit import People
from tests.compat.kafka.test_clients import CLIENTS, ClientSettings, Row, create
from tests.kafka_kit import Broker, KafkaConnection, kafka_serving
from tests.tls_kit import Authority
from tests.waiting import PATIENCE_S
from tms.runtime.tls import ServerTls
from tms.server.service import AccessLimits

pytestmark = pytest.mark.filterwarnings("ignore:.*_text is deprecated:DeprecationWarning")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
PROTOCOLS = ("SASL_PLAINTEXT", "SASL_SSL")
ROWS: list[Row] = [(None, b"value %d" % number) for number in range(50)]
numbers = itertools.count()


def settings_of(broker: Broker, ca: str, mechanism: str, user: str, token: str) -> ClientSettings:
    """The settings by which a principal connects, with TLS if there is a certificate of a CA."""
    servers, protocol = f"localhost:{broker.address[1]}", PROTOCOLS[bool(ca)]
    librdkafka = {
        "bootstrap.servers": servers,
        "security.protocol": protocol,
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": token,
        **({"ssl.ca.location": ca} if ca else {}),
    }
    python = {
        "bootstrap_servers": servers,
        "security_protocol": protocol,
        "sasl_mechanism": mechanism,
        "sasl_plain_username": user,
        "sasl_plain_password": token,
        **({"ssl_context": ssl.create_default_context(cafile=ca)} if ca else {}),
    }
    return ClientSettings(librdkafka, python)


@pytest.fixture(scope="module", params=PROTOCOLS)
def secured(request: pytest.FixtureRequest, authority: Authority) -> Iterator[tuple[Broker, str]]:
    if request.param == PROTOCOLS[0]:
        with kafka_serving(access=AccessLimits(), advertised="") as broker:
            yield broker, ""
        return
    tls = ServerTls(*authority.sign().pair)
    with kafka_serving(access=AccessLimits(), tls=tls) as broker:
        yield broker, str(authority.ca)


Login = Callable[..., ClientSettings]  # with a mechanism, a topic, and the verbs of grants on it


@pytest.fixture
def login(secured: tuple[Broker, str]) -> Login:
    broker, ca = secured

    def made(mechanism: str, topic: str, *verbs: str) -> ClientSettings:
        user = f"user-{next(numbers)}"
        token = People(broker.served).token(user, *(f"{verb} topic:{topic}" for verb in verbs))
        return settings_of(broker, ca, mechanism, user, token)

    return made


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_does_what_its_principal_may(login: Login, client: str, mechanism: str) -> None:
    topic = f"topic-{next(numbers)}"
    known = login(mechanism, topic, "manage", "publish", "consume")
    if client == "confluent-kafka":  # the others have it created by asking for it
        create(known.librdkafka, topic, 1)
    publish, read = CLIENTS[client]
    publish(known, topic, "none", ROWS)
    assert read(known, topic, f"group of {topic}", len(ROWS)) == ROWS


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_client_is_told_that_its_token_is_wrong(
    secured: tuple[Broker, str], mechanism: str
) -> None:
    wrong = settings_of(*secured, mechanism, "nobody", "wrong")
    errors: list[KafkaError] = []
    producer = confluent_kafka.Producer({**wrong.librdkafka, "error_cb": errors.append})
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


def test_a_client_is_told_that_it_may_not(login: Login) -> None:
    topic = f"topic-{next(numbers)}"
    create(login("PLAIN", topic, "all").librdkafka, topic, 1)
    reader = login("SCRAM-SHA-256", topic, "consume")
    reported: list[KafkaError] = []
    producer = confluent_kafka.Producer({**reader.librdkafka, "enable.idempotence": False})
    producer.produce(topic, b"x", on_delivery=lambda error, _: reported.append(error))
    producer.flush(PATIENCE_S)
    assert [one.code() for one in reported] == [KafkaError.TOPIC_AUTHORIZATION_FAILED]
    stranger = login("SCRAM-SHA-256", "another", "consume")
    settings = {**stranger.librdkafka, "group.id": "g", "topic.metadata.refresh.interval.ms": 500}
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
def test_transactions_are_those_of_their_principal(login: Login) -> None:
    topic = f"topic-{next(numbers)}"
    first, second = (login("SCRAM-SHA-512", topic, "all") for _ in range(2))
    id = f"id of {topic}"
    producer = confluent_kafka.Producer({**first.librdkafka, "transactional.id": id})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce(topic, b"x")
    producer.commit_transaction(PATIENCE_S)
    other = confluent_kafka.Producer({**second.librdkafka, "transactional.id": id})
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        other.init_transactions(PATIENCE_S)
    code = refused.value.args[0].code()
    assert code == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_a_name_in_a_certificate_is_a_principal(authority: Authority) -> None:
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
        create(settings, "certified", 1)
        with pytest.raises(confluent_kafka.KafkaException) as refused:
            create(settings, "not-mine", 1)
        assert refused.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_a_new_connection_by_a_certificate_brings_no_new_quota(authority: Authority) -> None:
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
