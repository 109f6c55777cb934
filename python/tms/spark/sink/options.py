"""The options of the data source `tms` for writing.

* Names are compared without case: Spark writes them in lower case. Errors use the name as it is
  documented.
* Nothing is ignored but what Spark itself passes along with a query.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches

from tms.errors import Invalid, TMSError
from tms.model.topic import TopicName

NAMES = ("topic", "tms.url", "tms.token")
_DOCUMENTED = {name.lower(): name for name in NAMES}
_OF_SPARK = {"checkpointlocation", "queryname"}  # of the query, and handed on to its sink
_ELSEWHERE = {
    "path": "Call save() or start() without a path, and name the topic with `topic`.",
    "subscribe": "It is an option of reading; to write, name the topic with `topic`.",
    "source": "Writing goes through a service; leave it out.",
    "tms.store": "Writing goes through a service: give `tms.url`.",
    "includeheaders": "Headers are written if there is a column `headers`; leave it out.",
    "kafka.bootstrap.servers": "The service's address is `tms.url`, e.g. http://localhost:7070.",
}


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Where to write: to one topic, or to those that the column `topic` names."""

    url: str
    token: str = field(default="", repr=False)
    topic: str = ""


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """What the options mean. Raises `Invalid`, whose detail `field` is the option."""
    got = {}
    for name, value in given.items():
        if name.lower() in _OF_SPARK:
            continue
        known = _DOCUMENTED.get(name.lower())
        if known is None:
            raise Invalid(_unknown(name), field=name)
        got[known] = str(value).strip()
    token = got.get("tms.token", "")
    if not re.fullmatch(r"[!-~]*", token):
        raise Invalid("The option tms.token is not printable ASCII.", field="tms.token")
    return WriteOptions(_url(got.get("tms.url", "")), token, _topic(got.get("topic")))


def _unknown(name: str) -> str:
    said = f"The data source tms has no option {name!r} for writing."
    hint = _ELSEWHERE.get(name.lower())
    if hint is None and name.lower().startswith("kafka."):
        hint = "Options of Kafka itself mean nothing here; leave it out."
    if hint is None:
        near = get_close_matches(name.lower(), _DOCUMENTED, n=1, cutoff=0.5)
        meant = f"Did you mean {_DOCUMENTED[near[0]]!r}? " if near else ""
        hint = f"{meant}It has {', '.join(NAMES)}."
    return f"{said} {hint}"


def _url(url: str) -> str:
    if not url:
        raise Invalid(
            "The option tms.url is missing: the service to write to, e.g. http://localhost:7070.",
            field="tms.url",
        )
    if not url.startswith(("http://", "https://")):
        raise Invalid(
            f"Spark writes to a service at http://HOST:PORT or https://HOST:PORT, got {url!r}. A "
            "data directory or an HBase belongs to the process that opened it: start `tms serve` "
            "on it and give its URL.",
            field="tms.url",
        )
    return url


def _topic(name: str | None) -> str:
    if name is None:
        return ""
    try:
        parsed = TopicName.parse(name)
        parsed.require_writable()
    except TMSError as error:
        raise Invalid(f"The option topic: {error.message}", field="topic") from error
    return str(parsed)
