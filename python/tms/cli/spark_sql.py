"""`tms spark sql`: topics as tables, for one statement or for a person who types them."""

import base64
import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any

import click

from tms.cli.declaring import ARGUMENT
from tms.cli.parameters import TOPIC, session_command
from tms.cli.session import Session
from tms.cli.spark_running import SparkOptions, StoreOption, Where, reading_from, started, watched
from tms.errors import TMSError
from tms.model.topic import DEFAULT_NAMESPACE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 1_000
_WORDS = re.compile(r"[a-z0-9._-]+")
_ENDS = ("exit", "quit")
_PROMPT = "sql> "


@session_command("sql")
def sql(
    session: Session,
    options: SparkOptions,
    query: Annotated[str | None, ARGUMENT] = None,
    topics: Annotated[tuple[str, ...], "-t", "--topic", TOPIC, "[all of `default`]"] = (),
    json_schema: Annotated[
        str | None,
        {"metavar": "SCHEMA"},
        "Values are JSON with these columns: `infer`, or `carrier STRING, delay INT`.",
    ] = None,
    rows: Annotated[int, click.IntRange(min=1), "Print up to so many."] = ROWS,
    store: StoreOption = None,
) -> None:
    """Run QUERY, or the statements that are typed, on topics as tables.

    A topic is a table of its name, NAMESPACE__NAME outside of the namespace `default`. SQL takes a
    name with a dot or a dash in backticks.

    \b
      tms spark sql 'select partition, count(*) from flights group by partition'
      tms spark sql -t flights --json-schema infer 'select avg(delay) from flights'
    """
    place = reading_from(session, store)
    there = topics or _all(place)
    with started(options) as spark:
        asked = _SqlSources(session, spark, place, tuple(there), json_schema, rows)
        if query is not None:
            asked.run(query)
            return
        for statement in _typed(session, there):
            try:
                asked.run(statement)
            except TMSError as error:  # a person goes on typing
                session.say(f"error: {error.message}")


def _all(place: Where) -> list[str]:
    from tms.spark.source.options import TopicPlace
    from tms.spark.source.reader import open_topics

    with closing(
        open_topics(TopicPlace(place.url or "", place.token or "", place.store or ""))
    ) as topics:
        return list(map(str, topics.names(DEFAULT_NAMESPACE)))


@dataclass(frozen=True)
class _SqlSources:
    """The views that statements read."""

    session: Session
    spark: "SparkSession"
    place: Where
    topics: tuple[str, ...]
    json_schema: str | None
    rows: int

    def run(self, statement: str) -> None:
        """Run a statement and print its result. The topics that it names are read anew."""
        from tms.spark import jobs
        from tms.spark.jobs.place import errors_told
        from tms.spark.jobs.views import view_name

        words = _words(statement.lower())
        named = [topic for topic in self.topics if view_name(topic).lower() in words]
        with errors_told(), watched(self.session, self.spark, "running"):
            if named:
                jobs.sql(
                    self.spark, named, None, **self.place._asdict(), json_schema=self.json_schema
                )
            found = self.spark.sql(statement)
            lines = found.limit(self.rows + 1).collect()
        names = _unique(found.columns)
        shown = [dict(zip(names, map(_cell, line), strict=True)) for line in lines[: self.rows]]
        self.session.show(shown, shown)
        if len(lines) > self.rows:
            self.session.say(f"only the first {self.rows:,} rows are shown; --rows shows more")


def _words(statement: str) -> set[str]:
    """The words that may name a table: `orders.key` names `orders`, or the topic `orders.key`."""
    words = _WORDS.findall(statement)
    return {*words, *(part for word in words for part in word.split("."))}


def _typed(session: Session, topics: Sequence[str]) -> Iterator[str]:
    """Statements, one on a line, until `exit` or the end."""
    talks = sys.stdin.isatty() and not session.no_input
    if talks:
        import readline  # lines can be edited, and come back

        readline.set_auto_history(True)
        session.say(f"topics: {', '.join(topics)}\nOne statement on a line; `exit` ends.")
    while True:
        try:
            line = input(_PROMPT) if talks else sys.stdin.readline()
        except EOFError:
            return
        statement = line.strip().rstrip(";").strip()
        if statement.lower() in _ENDS or (not talks and not line):
            return
        if statement:
            yield statement


def _unique(names: list[str]) -> list[str]:
    """The names of the columns; a repeated name gets a number."""
    found: list[str] = []
    for name in names:
        number, unique = 1, name
        while unique in found:
            number += 1
            unique = f"{name}_{number}"
        found.append(unique)
    return found


def _cell(value: Any) -> object:
    """A value in the form of JSON; text for every type that JSON lacks."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else str(value)
    plain = _plain(value)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes | bytearray):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if hasattr(value, "asDict"):
        return {name: _plain(part) for name, part in value.asDict().items()}
    if isinstance(value, dict):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
