"""The options of the data source `tms` for writing.

* Nothing is ignored but what Spark itself passes along with a query.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tms.errors import Invalid, TMSError
from tms.model.topic import TopicName
from tms.spark.naming import Names, token_of

NAMES = ("topic", "tms.url", "tms.token")
_OF_SPARK = frozenset({"checkpointlocation", "queryname"})  # of the query
_ELSEWHERE = {
    "path": "Call save() or start() without a path, and name the topic with `topic`.",
    "subscribe": "It is an option of reading; to write, name the topic with `topic`.",
    "source": "Writing goes through a service; leave it out.",
    "tms.store": "Writing goes through a service: give `tms.url`.",
    "includeheaders": "Headers are written if there is a column `headers`; leave it out.",
    "kafka.bootstrap.servers": "The service's address is `tms.url`, e.g. http://localhost:7070.",
}
_NAMES = Names("writing", NAMES, _ELSEWHERE, _OF_SPARK)


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Where to write: to one topic, or to those that the column `topic` names."""

    url: str
    token: str = field(default="", repr=False)
    topic: str = ""


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """What the options mean. Raises `Invalid`, whose detail `field` is the option."""
    got = _NAMES.recognized(options)
    return WriteOptions(_url(got.get("tms.url", "")), token_of(got), _topic(got.get("topic")))


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
