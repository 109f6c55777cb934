"""The parameters of a fetch, read from its request."""

from base64 import urlsafe_b64decode
from collections.abc import Mapping
from typing import NamedTuple, Self

from tms.api import bodies, cloud_events, messages, routes
from tms.api.parameters import FETCH_MESSAGES_DEFAULT, FetchQuery
from tms.errors import BadEncoding, Invalid
from tms.model.filter import Filter, as_filter
from tms.model.message import Buffer, PartitionPosition, in_turn
from tms.model.position import Position
from tms.model.snapshot import Isolation, ReadIsolation, as_isolation
from tms.model.topic import TopicName
from tms.server.forwarding import HOP
from tms.server.http.exchange import Exchange
from tms.server.http.request import answer_media, header, query_of
from tms.server.service import Service

_MADE = (routes.JSON, routes.BLOCKS, routes.ARROW_STREAM, routes.CLOUD_EVENTS)
_FOLLOWED = (routes.NDJSON, routes.BLOCKS, routes.ARROW_STREAM, routes.EVENTS)
_LAST_EVENT = b"last-event-id"


class RequestedFetch(NamedTuple):
    """The wanted messages, and the form of the answer."""

    name: TopicName
    media: str
    positions: tuple[PartitionPosition, ...]
    bytes_max: int
    wait_s: float
    limit: int
    isolation: ReadIsolation
    where: Filter | None
    for_peer: bool
    follow: bool

    def behind(self, ends: Mapping[int, Position]) -> Self:
        """This fetch from the end of another one."""
        positions = tuple([PartitionPosition(p, ends[p]) for p, _ in self.positions])
        return self._replace(positions=positions)

    def turned(self, ended: bool) -> Self:
        """This fetch, beginning with another partition. If nothing more is to be read, in the order
        of the partitions, so that followers of the same messages send equal fetches."""
        positions = sorted(self.positions) if ended else in_turn(self.positions, 1)
        return self._replace(positions=tuple(positions))

    def body(self, unpacked: messages.Unpacked, ends: Mapping[int, int]) -> Buffer:
        """The body of an answer with these messages, if not as blocks."""
        if self.media == routes.ARROW_STREAM:
            return memoryview(messages.as_arrow(unpacked.runs))
        if self.media == routes.CLOUD_EVENTS:
            return cloud_events.as_batch(self.name, unpacked)
        return messages.as_json(unpacked, ends)


def read_request(exchange: Exchange, name: TopicName, service: Service) -> RequestedFetch:
    """Read a fetch from its request. Raises errors of its parameters."""
    limits, query = service.limits, query_of(exchange.query, FetchQuery)
    media = answer_media(exchange, _FOLLOWED if query.follow else _MADE)
    if media == routes.BLOCKS and query.limit is not None:
        raise Invalid("`limit` counts messages; blocks are limited by `bytes_max`.", field="limit")
    start = query.start
    if media == routes.EVENTS and _LAST_EVENT in exchange.headers:
        start = header(exchange, _LAST_EVENT)  # a page was cut off, and goes on
    positions = bodies.parse_positions(start)
    if isinstance(positions, Position):
        partitions = service.engine.settings(name).partitions
        positions = [PartitionPosition(p, positions) for p in range(partitions)]
    return RequestedFetch(
        name,
        media,
        tuple(positions),
        min(query.bytes_max, limits.fetch_bytes_max),
        min(query.wait_s, limits.fetch_wait_ms_max / 1_000),
        query.limit or FETCH_MESSAGES_DEFAULT,
        _isolation(query),
        as_filter(query.where),
        HOP in exchange.headers,
        query.follow,
    )


def _isolation(query: FetchQuery) -> ReadIsolation:
    if (query.snapshot is None) is (query.isolation is Isolation.SNAPSHOT):
        raise Invalid("The isolation `snapshot` and a snapshot go together.", field="snapshot")
    if query.snapshot is None:
        return query.isolation
    try:
        return as_isolation(urlsafe_b64decode(query.snapshot.encode("ascii")))
    except ValueError as exc:
        raise BadEncoding("The snapshot is not base64 in its form for URLs.") from exc
