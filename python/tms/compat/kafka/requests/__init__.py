"""The requests of Kafka's protocol that are answered here: a module for each, found by its name.

A module `describe_configs` answers the requests DescribeConfigs. It has `VERSIONS`, the first and
the last version that it answers, and `answer`, an asynchronous function that takes a `KafkaCall`
and returns the response; None: the client wants no answer. Where clients have to see an older
version than any that is answered, it has `ADVERTISED_FROM`, too.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, NamedTuple, TypeVar

from tms.compat.kafka import codec
from tms.compat.kafka.broker import Broker
from tms.compat.kafka.codec import KafkaMessage, Versions
from tms.errors import TMSError
from tms.server.framed import FramedConnection
from tms.server.http.request import Budget

API_VERSIONS = 18
H = TypeVar("H", bound=Hashable)


class KafkaCall(NamedTuple):
    """A request: its message with the version, the name that the client gives itself, and the
    connection that it came from."""

    broker: Broker
    message: KafkaMessage
    version: int
    client: str
    connection: FramedConnection
    requests: Mapping[int, "RequestType"]

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

    def is_flexible(self, version: int) -> bool:
        """True if this version has tagged fields."""
        return version in self.flexible

    def refusal(self, error: TMSError, code: int) -> KafkaMessage:
        """The response that refuses a request as a whole. Raises the error if the response has no
        place for it."""
        response = codec.class_of(self.name + "Response")
        if "error_code" not in response.__struct_fields__:
            raise error
        answer = response(error_code=code)
        if "error_message" in response.__struct_fields__:
            answer.error_message = error.message
        return answer


def repeated(names: Iterable[H]) -> set[H]:
    """The names that a request has more than once."""
    return {name for name, count in Counter(names).items() if count > 1}


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
        )
    return found


def api_keys(known: Mapping[int, RequestType]) -> list[KafkaMessage]:
    """The keys and versions of ApiVersions."""
    entry = codec.class_of("ApiVersionsResponse").ApiVersion
    return [
        entry(api_key=key, min_version=one.advertised_from, max_version=one.versions.last)
        for key, one in sorted(known.items())
    ]
