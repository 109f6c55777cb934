"""The requests of Kafka's protocol that are answered here: a module for each, found by its name.

A module `describe_configs` answers the requests DescribeConfigs. It has `VERSIONS`, the first and
the last version that it answers, and `answer`, an asynchronous function that takes a `KafkaCall`
and returns the response; None: the client wants no answer. It may have

    ADVERTISED_FROM  an older version than any that is answered, which clients have to see
    CODE_OF          the function that makes error codes, as `coordinator_code`
    CONFIRMS         False if the answer needs no topic, and nothing that only the owner of a
                     partition or the coordinator of a group has

Access: a module gets its topics, groups and transactional ids from the `KafkaCall`, by methods that
take the verb of the request, and decides about anything else with `require`. Nothing else makes a
name of a request into one of the engine. `tests/compat/kafka/test_access.py` has a row for each
module, and fails for a module without one.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from tms.access.decisions import topic_resource
from tms.access.grants import some_group, some_topic
from tms.compat.kafka import codec
from tms.compat.kafka.authentication import Authentication, AuthenticationFailed, KafkaCaller
from tms.compat.kafka.broker import Broker
from tms.compat.kafka.codec import KafkaMessage, Versions
from tms.compat.kafka.errors import ErrorCode, code_of
from tms.errors import Forbidden, Invalid, TMSError, again
from tms.groups.classic_calls import ClassicKey
from tms.model.access import Access
from tms.model.topic import TopicName
from tms.server.framed import FramedConnection
from tms.server.http.request import Budget

API_VERSIONS = 18
CLUSTER = "cluster"  # the resource of the broker
RESOURCE = ("resource_type", "resource_name")  # the fields that name a resource with settings
TRANSACTIONS = "transactions"  # and of other principals' transactional ids
H = TypeVar("H", bound=Hashable)


class KafkaCall(NamedTuple):
    """A request: its message with the version, the name that the client gives itself, and the
    connection that it came from. `authentication` and `caller` are None where access is not
    controlled. `doubt` is the reason why what this process holds may be another's now, None if it
    held that after the request came. Methods that take a verb raise `Forbidden`, and may be called
    by any thread."""

    broker: Broker
    message: KafkaMessage
    version: int
    client: str
    connection: FramedConnection
    requests: Mapping[int, "RequestType"]
    authentication: Authentication | None = None
    caller: KafkaCaller | None = None
    doubt: TMSError | None = None

    # -- access --------------------------------------------------------------------------------

    def require(self, verb: Access, resource: str) -> None:
        """Raise `Forbidden` unless the caller may do this, and an error if the grants may be out of
        date."""
        if self.caller is not None:
            self.require_no_doubt()
            self.caller.require(verb, resource)

    def may(self, verb: Access, resource: str) -> bool:
        """True if the caller may do this. Raises an error if the grants may be out of date."""
        if self.caller is None:
            return True
        self.require_no_doubt()
        return self.caller.may(verb, resource)

    def require_no_doubt(self) -> None:
        """Raise the reason why what this process holds may be another's now, if there is one."""
        if self.doubt is not None:
            raise again(self.doubt)

    def topic(self, name: str, verb: Access) -> TopicName:
        """The full name of a topic. Raises `Invalid`."""
        topic = self.broker.topic(name)
        if self.caller is not None:
            self.require(verb, topic_resource(topic))
        return topic

    async def named(self, name: str, id: bytes, verb: Access) -> TopicName:
        """The topic that a request names by name or, in newer versions, by id. Raises `Invalid`,
        `TopicNotFound`. By the event loop's thread."""
        if id == codec.NO_ID:
            return self.topic(name, verb)
        topic = await self.broker.with_id(id)
        if self.caller is None:
            return topic
        try:
            self.require(verb, topic_resource(topic))
        except Forbidden:
            if self.may(Access.OBSERVE, topic_resource(topic)):
                raise
            why = f"{self.principal} may not {verb} the topic with the id {UUID(bytes=id)}."
            raise Forbidden(why) from None  # without the topic's name
        return topic

    def some_topic(self, verb: Access) -> None:
        """Raise `Forbidden` unless there is a topic that the caller may do this with."""
        self.require(verb, some_topic(self.broker.options.namespace))

    def group(self, name: str, verb: Access) -> ClassicKey:
        """The key of a group, for a request that names none of its topics. Raises `Invalid`."""
        key = self.broker.group(name)
        if self.caller is not None:
            self.require(verb, some_group(*key))
        return key

    def coordinated(self, name: str, verb: Access) -> ClassicKey:
        """The key of a group that this broker coordinates. Raises `Invalid`, `NotOwner`,
        `Unavailable`; `coordinator_code` has their codes."""
        key = self.group(name, verb)
        self.require_coordinator(key.group)
        return key

    def require_coordinator(self, group: str) -> None:
        """Raise `NotOwner` or `Unavailable` unless this broker coordinates a group."""
        self.require_no_doubt()
        self.broker.engine.groups.of(group)

    def require_leader(self, name: TopicName, partition: int) -> None:
        """Raise `NotOwner` or `Unavailable` unless this broker leads a partition, and
        `TopicNotFound`, `PartitionNotFound`. Reads no store if the topic is known."""
        self.require_no_doubt()
        if self.broker.brokers.are_several:
            self.broker.brokers.require_leader(name, self.broker.record(name), partition)

    def group_of(self, topic: str, group: str, verb: Access) -> TopicName:
        """The full name of a topic in which a group has positions. Raises `Invalid`."""
        name = self.broker.topic(topic)
        if self.caller is None:
            return name
        try:
            self.require(verb, group_resource(name, group))
        except Forbidden as error:
            raise Forbidden(error.message) from None  # for the topic, not for the group
        return name

    @property
    def principal(self) -> str:
        """The principal of the caller; empty where access is not controlled."""
        return "" if self.caller is None else self.caller.principal

    def require_owner(self, owner: str) -> None:
        """Raise `Forbidden` unless the caller may use a transactional id of this principal; empty:
        of nobody."""
        if owner not in ("", self.principal):
            self.require(Access.OPERATE, TRANSACTIONS)

    def owns(self, owner: str) -> bool:
        """True if the caller may see a transactional id of this principal."""
        return owner == self.principal or self.may(Access.OPERATE, TRANSACTIONS)

    def end_after(self, failed: AuthenticationFailed) -> None:
        """Close the connection after the answer, if the failure ends it."""
        if failed.ends:
            self.connection.end_reading()

    # -- answers -------------------------------------------------------------------------------

    def hold(self, budget: Budget, size: int) -> None:
        """Count bytes in a budget until the client has taken the answer."""
        budget.bytes += size
        self.connection.when_answered(partial(budget.release, size))


@dataclass(frozen=True, slots=True)
class RequestType:
    """A kind of request, with the versions that are answered."""

    name: str
    key: int
    versions: Versions
    advertised_from: int
    flexible: Versions
    answer: Callable[[KafkaCall], Awaitable[KafkaMessage | None]]
    code_of: Callable[[TMSError], ErrorCode]
    confirms: bool

    def is_flexible(self, version: int) -> bool:
        """True if this version has tagged fields."""
        return version in self.flexible

    def refusal(self, error: TMSError, code: ErrorCode | None = None) -> KafkaMessage:
        """The response that refuses a request as a whole, with the code of the error or another
        one. Raises the error if the response has no place for it."""
        response = codec.class_of(self.name + "Response")
        if "error_code" not in response.__struct_fields__:
            raise error
        answer = response(error_code=self.code_of(error) if code is None else code)
        if "error_message" in response.__struct_fields__:
            answer.error_message = error.message
        return answer


def group_resource(topic: TopicName, group: str) -> str:
    """A group of a topic as a resource."""
    return f"group:{topic.namespace}:{topic.topic}/{group}"


def repeated(names: Iterable[H]) -> set[H]:
    """The names that a request has more than once."""
    return {name for name, count in Counter(names).items() if count > 1}


async def each_once(
    elements: Sequence[KafkaMessage],
    fields: tuple[str, ...],
    made: Callable[..., KafkaMessage],
    work: Callable[[KafkaMessage, KafkaMessage], Awaitable[None]],
) -> list[KafkaMessage]:
    """A result of each element of a request, with an error of its own. `work` takes an element and
    its result, and raises before it changes the result. `fields` name an element: its result has
    them, too. An element that a request names more than once is refused each time."""
    names = [tuple(getattr(one, field) for field in fields) for one in elements]
    twice = repeated(names)
    results = []
    for one, name in zip(elements, names, strict=True):
        result = made(**dict(zip(fields, name, strict=True)))
        results.append(result)
        try:
            if name in twice:
                raise Invalid(f"The request names {name[-1]!r:.80} more than once; name it once.")
            await work(one, result)
        except TMSError as error:
            result.error_code = code_of(error)
            result.error_message = error.message
    return results


def load() -> Mapping[int, RequestType]:
    """All requests that are answered, by their keys."""
    found: dict[int, RequestType] = {}
    for module in iter_modules(__path__):
        given: Any = import_module(f"{__name__}.{module.name}")
        name = "".join(part.capitalize() for part in module.name.split("_"))
        definition = codec.definitions()[name + "Request"]
        versions = Versions(*given.VERSIONS)
        found[definition.key] = RequestType(
            name,
            definition.key,
            versions,
            getattr(given, "ADVERTISED_FROM", versions.first),
            definition.flexible,
            given.answer,
            getattr(given, "CODE_OF", code_of),
            getattr(given, "CONFIRMS", True),
        )
    return found


def api_keys(known: Mapping[int, RequestType]) -> list[KafkaMessage]:
    """The keys and versions of ApiVersions."""
    entry = codec.class_of("ApiVersionsResponse").ApiVersion
    return [
        entry(api_key=key, min_version=one.advertised_from, max_version=one.versions.last)
        for key, one in sorted(known.items())
    ]
