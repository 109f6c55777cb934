"""The columns that a row needs to become a message, and their places.

    value      binary | string                                 must be there; null is a tombstone
    key        binary | string                                 decides about the partition
    headers    array<struct<key: string, value: binary>>
    event_time timestamp                                       null: none
    topic      string                                          unless the option `topic` is given
    partition  int                                             null: the key decides

Names and types are those of Spark's Kafka sink. Other columns of rows that were read from a topic,
such as the offset, may stay in the rows: the target topic gives new values. Any other column would
be lost, and is an error.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from tms.errors import Invalid

TYPES = {
    "value": ("binary", "string"),
    "key": ("binary", "string"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "event_time": ("timestamp",),
    "topic": ("string",),
    "partition": ("int",),
}
GIVEN_BY_TOPIC = frozenset(("offset", "timestamp", "timestamptype", "id"))


@dataclass(frozen=True, slots=True)
class Shape:
    """The places of these columns. `topic` is the topic of every row, "" if a column names it."""

    places: Mapping[str, int]
    topic: str


def shape_of(fields: Sequence[tuple[str, str]], topic: str) -> Shape:
    """The shape of rows with these columns, by name and type as Spark spells it. Raises `Invalid`,
    whose detail `field` is the column."""
    places: dict[str, int] = {}
    for place, (column, type_name) in enumerate(fields):
        name = column.lower()
        if name in GIVEN_BY_TOPIC:
            continue
        if name not in TYPES:
            raise Invalid(_unknown(column), field=column)
        if name in places:
            raise Invalid(
                f"There are two columns {name!r}; names are compared without case.", field=column
            )
        if type_name.partition(" collate ")[0] not in TYPES[name]:
            raise Invalid(
                f"The column {column} is {' or '.join(TYPES[name])}, not {type_name}. "
                f"{_remedy(column, type_name)}",
                field=column,
            )
        places[name] = place
    if "value" not in places:
        found = ", ".join(column for column, _ in fields) or "none"
        raise Invalid(
            f"A message needs a column `value` of type binary or string; the columns are {found}. "
            "For rows as JSON: selectExpr('to_json(struct(*)) AS value').",
            field="value",
        )
    if not topic and "topic" not in places:
        raise Invalid(
            "Nothing says where to write: give the option `topic`, or a column `topic`.",
            field="topic",
        )
    return Shape(places, topic)


def _unknown(column: str) -> str:
    near = get_close_matches(column.lower(), TYPES, n=1, cutoff=0.6)
    meant = f"Did you mean {near[0]!r}? " if near else ""
    return (
        f"The column {column!r} has no place in a message. {meant}A message has "
        f"{', '.join(TYPES)}: select these, or put the row into the value, e.g. with "
        "to_json(struct(*))."
    )


def _remedy(column: str, type_name: str) -> str:
    if column.lower() == "partition":
        return "Cast it: partition.cast('int')."
    if column.lower() == "event_time":
        return "Cast it: event_time.cast('timestamp')."
    if column.lower() == "headers":
        return "Header names are text, their values binary."
    if type_name.startswith(("struct", "array", "map")):
        return f"Encode it, e.g. to_json({column})."
    return f"Cast it: {column}.cast('string')."
