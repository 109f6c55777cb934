"""The options of the data source `tms` for writing."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from tms.errors import Invalid
from tms.runtime.tls import ClientTls
from tms.spark.options import (
    TLS_OPTIONS,
    TOKEN_OPTIONS,
    Option,
    OptionTable,
    service_url,
    tls_of,
    token_of,
    topic_name,
)

_OPTIONS = OptionTable(
    "writing",
    [
        Option("topic", partial(topic_name, written=True), ""),
        Option("tms.url", service_url),
        *TOKEN_OPTIONS,
        *TLS_OPTIONS,
    ],
    {
        "path": "Call save() or start() without a path, and name the topic with `topic`.",
        "subscribe": "It is an option of reading; to write, name the topic with `topic`.",
        "source": "Writing goes through a service; leave it out.",
        "tms.store": "Writing goes through a service: give `tms.url`.",
        "includeheaders": "Headers are written if there is a column `headers`; leave it out.",
        "kafka.bootstrap.servers": "The service's address is `tms.url`, e.g. http://localhost:7070.",
    },
    frozenset({"checkpointlocation", "queryname"}),  # of the query
)


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The target of writing: one topic, or those that the column `topic` names."""

    url: str
    token: str = field(default="", repr=False)
    topic: str = ""
    tls: ClientTls = field(default_factory=ClientTls)


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """The meaning of the options. Raises `Invalid`, whose detail `field` is the option."""
    values = _OPTIONS.read(options)
    if values["tms.url"] is None:
        raise Invalid(
            "The option tms.url is missing: the service to write to, e.g. http://localhost:7070.",
            field="tms.url",
        )
    return WriteOptions(values["tms.url"], token_of(values), values["topic"], tls_of(values))
