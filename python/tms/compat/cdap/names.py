"""Names and properties of topics, as CDAP says them.

* CDAP's namespace `system` is the namespace `cdap_system` here, where `system` belongs to TMS.
* A topic's properties are kept as they were given; `ttl` is its retention in seconds, `generation`
  counts its lives and is never taken from a client.
"""

import json
import re
from collections.abc import Mapping

from tms.api import routes
from tms.api.strict import check_strict
from tms.compat.cdap.answers import Refusal, wrong
from tms.errors import Invalid, TMSError
from tms.model.message import Buffer
from tms.model.topic import TopicInfo, TopicName, TopicSettings
from tms.server.http.request import path_text

TTL, GENERATION = "ttl", "generation"
_INT_MAX = 2**31 - 1
_SYSTEM, _SYSTEM_HERE = "system", "cdap_system"
_NAMESPACE = re.compile(r"[A-Za-z0-9_]+", re.ASCII)
_TOPIC = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_INT = re.compile(r"[+-]?[0-9]{1,10}", re.ASCII)


def namespace_of(raw: bytes) -> str:
    """The namespace in a path, as it is called here. Raises `Refusal`."""
    text = _text(raw)
    if not _NAMESPACE.fullmatch(text) or text == _SYSTEM_HERE:
        raise wrong(
            f"Invalid namespace ID: {text}. Should only contain alphanumeric characters or _."
        )
    return _SYSTEM_HERE if text == _SYSTEM else text


def topic_of(namespace: bytes, topic: bytes) -> TopicName:
    """The topic in a path. Raises `Refusal`."""
    where, text = namespace_of(namespace), _text(topic)
    if not is_topic(text):
        raise wrong(
            f"Invalid topic ID: {text}. Should only contain alphanumeric characters and _ or -."
        )
    try:
        return TopicName.of(where, text)
    except Invalid as exc:
        raise wrong(exc.message) from exc


def is_topic(topic: str) -> bool:
    """True if CDAP can name the topic: in CDAP no topic has a dot."""
    return _TOPIC.fullmatch(topic) is not None


def full(name: TopicName, separator: str = ":") -> str:
    """The topic as CDAP writes it."""
    namespace = _SYSTEM if name.namespace == _SYSTEM_HERE else name.namespace
    return f"{namespace}{separator}{name.topic}"


def qualified(name: TopicName) -> str:
    """The topic as CDAP writes it where other things could stand."""
    return f"topic:{full(name, '.')}"


def missing(name: TopicName) -> Refusal:
    """There is no such topic."""
    return Refusal(routes.NOT_FOUND, f"Topic {full(name)} does not exist.")


def require_one_partition(settings: TopicSettings, name: TopicName) -> None:
    """Raises `Refusal` for a topic that CDAP's clients cannot understand."""
    if settings.partitions != 1:
        raise wrong(f"The topic {name} has several partitions; use /v2 for it.")


def properties_in(body: Buffer) -> dict[str, str]:
    """The properties in a body; none in an empty one. Raises `Refusal`."""
    if not len(body):
        return {}
    try:
        check_strict(body)
    except TMSError as exc:
        raise _not_properties() from exc
    properties = json.loads(bytes(body), parse_int=str, parse_float=str)
    if not isinstance(properties, dict):
        raise _not_properties()
    return {name: _property(value) for name, value in properties.items()}


def settings_of(name: TopicName, properties: Mapping[str, str], ttl_s: int) -> TopicSettings:
    """The settings in the properties of a topic; `ttl_s` applies if they have no `ttl`. Raises
    `Refusal`."""
    where = f"topic {qualified(name)}"
    generation = properties.get(GENERATION)
    if generation is not None:
        if not _is_int(generation):
            raise wrong(f"The generation property must be a number other than zero for {where}")
        if int(generation) == 0:
            raise wrong(f"The generation property must not be zero for {where}")
    ttl = properties.get(TTL)
    if ttl is None:
        return TopicSettings(retention_ms=ttl_s * 1_000)
    if not _is_int(ttl):
        raise wrong(f"The ttl property must be a number greater than zero for {where}")
    if int(ttl) <= 0:
        raise wrong(f"The ttl property must be greater than zero for {where}")
    return TopicSettings(retention_ms=int(ttl) * 1_000)


def described(info: TopicInfo, properties: Mapping[str, str]) -> bytes:
    """The properties of a topic as JSON, by name."""
    kept_ms = info.settings.retention_ms
    ttl = _INT_MAX if kept_ms is None else min(_INT_MAX, max(1, kept_ms // 1_000))
    ttl_given = properties.get(TTL, "")
    known = {**properties, GENERATION: str(info.generation)}
    known[TTL] = ttl_given if ttl_given and int(ttl_given) == ttl else str(ttl)
    return json.dumps(known, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _is_int(text: str) -> bool:
    """True if Java reads the text as an int."""
    return bool(_INT.fullmatch(text)) and -_INT_MAX - 1 <= int(text) <= _INT_MAX


def _text(raw: bytes) -> str:
    try:
        return path_text(raw)
    except TMSError as exc:
        raise wrong(exc.message) from exc


def _property(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        raise _not_properties()
    return value


def _not_properties() -> Refusal:
    return wrong("Invalid topic properties. It must be JSON object with string values.")
