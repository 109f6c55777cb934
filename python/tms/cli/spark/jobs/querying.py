"""`tms spark sql`: topics as tables, for one statement or for a person who types them."""

import base64
import json
import sys
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import click

from tms.cli.session import TOPIC, Session, Shared
from tms.cli.spark.jobs.running import (
    Where,
    spark_options,
    started,
    store_option,
    watched,
    where,
)
from tms.errors import TMSError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 1_000
_ENDS = ("exit", "quit")
_PROMPT = "sql> "


@click.command("sql", cls=Shared)
@click.argument("query", required=False)
@click.option("-t", "--topic", "topics", type=TOPIC, multiple=True, help="[all of `default`]")
@click.option(
    "--json-schema",
    metavar="SCHEMA",
    help="Values are JSON with these columns: `infer`, or `carrier STRING, delay INT`.",
)
@click.option("--rows", type=click.IntRange(min=1), default=ROWS, help="Print up to so many.")
@store_option
@spark_options
@click.pass_obj
def sql(
    session: Session,
    /,
    query: str | None,
    topics: tuple[str, ...],
    json_schema: str | None,
    rows: int,
    store: str | None,
    master: str | None,
    confs: tuple[str, ...],
) -> None:
    """Run QUERY, or the statements that are typed, on topics as tables.

    A topic is a table of its name, NAMESPACE__NAME outside of the namespace `default`.

    \b
      tms spark sql 'select partition, count(*) from flights group by partition'
      tms spark sql -t flights --json-schema infer 'select avg(delay) from flights'
    """
    place = where(session, store)
    with started(master, confs) as spark:
        from tms.spark import jobs

        there = {"store": place.store, "json_schema": json_schema}
        found = jobs.sql(spark, topics or _all(place), query, place.url, **there)
        if found is not None:
            _print(session, spark, found, rows)
            return
        for statement in _typed(session):
            try:
                _print(session, spark, spark.sql(statement), rows)
            except Exception as error:  # a person goes on typing
                session.say(f"error: {_said(error)}")


def _all(place: Where) -> list[str]:
    from tms.spark.source.options import Place
    from tms.spark.source.reader import open_topics

    return open_topics(Place(place.url or "", "", place.store or "")).topics(".*")


def _typed(session: Session) -> Iterator[str]:
    """Statements, one on a line, until `exit` or the end."""
    talks = sys.stdin.isatty() and not session.no_input
    if talks:
        import readline  # lines can be edited, and come back

        readline.set_auto_history(True)
        session.say("One statement on a line; `show tables` lists the topics, `exit` ends.")
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


def _print(session: Session, spark: "SparkSession", found: "DataFrame", rows: int) -> None:
    from tms.spark.jobs.place import errors_told

    with errors_told(), watched(session, spark, "running"):
        rows_found = found.limit(rows + 1).collect()
    names = _unique(found.columns)
    shown = [dict(zip(names, map(_cell, row), strict=True)) for row in rows_found[:rows]]
    session.show(shown, shown)
    if len(rows_found) > rows:
        session.say(f"only the first {rows:,} rows are shown; --rows shows more")


def _unique(names: list[str]) -> list[str]:
    """The names of the columns, those that are there twice with a number."""
    found: list[str] = []
    for name in names:
        number, unique = 1, name
        while unique in found:
            number += 1
            unique = f"{name}_{number}"
        found.append(unique)
    return found


def _cell(value: Any) -> object:
    """A value as JSON has it; what is neither number nor text as text."""
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


def _said(error: Exception) -> str:
    """The first line of what Spark says; the rest is a trace."""
    if isinstance(error, TMSError):
        return error.message
    return str(error).strip().partition("\n")[0]
