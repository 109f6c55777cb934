"""Topics as views of Spark SQL.

    flights           the topic flights; namespace__topic for one of another namespace
    `shop.orders`     the topic shop.orders: SQL takes a name with a dot or a dash in backticks
      key … id        the columns of a topic, with headers and id
      text            the value as a string
      carrier, …      what the value has when it is JSON, on request

Invariants

* A view shows the messages that existed at its first use, because Spark plans the scan once. `sql`
  makes the views again.
* Topics whose views would have one name, of which Spark ignores the case, are refused together.
* A column of the JSON that has the name of one of the topic's is called json_NAME.
"""

from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING

from tms.errors import Invalid
from tms.model.topic import DEFAULT_NAMESPACE, TopicName
from tms.spark.jobs.place import Names, Subject, errors_told
from tms.spark.source.reader import open_topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

INFER = "infer"
INFERRED_ROWS = 1_000  # the first of a topic, that say what its JSON has
_CORRUPT = "_corrupt_record"
_ALL = {"includeHeaders": "true", "includeMessageId": "true", "includeEventTime": "true"}


def sql(
    spark: "SparkSession",
    topics: Names,
    query: str | None = None,
    url: str | None = None,
    *,
    token: str | None = None,
    store: str | None = None,
    json_schema: str | None = None,
) -> "DataFrame | None":
    """Make a view of each topic; the result of the query, if there is one.

    `json_schema` are the columns that values have as JSON: `infer`, from the first of each topic,
    or as Spark writes a schema: `carrier STRING, delay INT`. Raises `TopicNotFound`,
    `Invalid`, also for what is wrong with the query.
    """
    named = Subject.of(topics, url, token, store)
    table, count = Counter(view_name(topic).lower() for topic in named.topics).most_common(1)[0]
    if count > 1:
        raise Invalid(
            f"{count} of the topics would be the table {table}. Choose one (--topic, topics=).",
            field="topics",
        )
    with closing(open_topics(named.place)) as there:
        for topic in named.topics:
            there.generation(topic)  # raises now what the query would raise later
    for topic in named.topics:
        with errors_told():
            rows = Subject.of(topic, url, token, store).rows(spark, _ALL)
            rows = rows.selectExpr("*", "CAST(value AS STRING) AS text")
            if json_schema is not None:
                rows = _with_json(spark, rows, json_schema)
            rows.createOrReplaceTempView(f"`{view_name(topic)}`")
    if query is None:
        return None
    with errors_told():
        return spark.sql(query)


def view_name(topic: str) -> str:
    """The name of the view of a topic."""
    name = TopicName.parse(topic)
    if name.namespace == DEFAULT_NAMESPACE:
        return name.topic
    return f"{name.namespace}__{name.topic}"


def _with_json(spark: "SparkSession", rows: "DataFrame", json_schema: str) -> "DataFrame":
    from pyspark.sql import functions as F

    schema = _inferred(spark, rows) if json_schema == INFER else _given(json_schema)
    taken = {name.lower() for name in rows.columns}
    parsed = rows.withColumn("__json", F.from_json("text", schema)) if schema.fields else rows
    columns = [F.col(name) for name in rows.columns]
    for field in schema.fieldNames():
        name = f"json_{field}" if field.lower() in taken else field
        taken.add(name.lower())
        columns.append(F.col("__json").getField(field).alias(name))
    return parsed.select(*columns)


def _given(ddl: str) -> "StructType":
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    try:
        found = StructType.fromDDL(ddl)
        assert isinstance(found, StructType), "columns make a structure"
        return found
    except PySparkException as error:
        said = str(error).strip().partition("\n")[0]
        raise Invalid(
            f"A schema is `infer`, or columns like `carrier STRING, delay INT`; got {ddl!r}: "
            f"{said}",
            field="json_schema",
        ) from error


def _inferred(spark: "SparkSession", rows: "DataFrame") -> "StructType":
    from pyspark.sql.types import StructType

    texts = [row.text for row in rows.select("text").limit(INFERRED_ROWS).collect() if row.text]
    found = spark.read.json(spark.sparkContext.parallelize(texts, 1)).schema
    return StructType([field for field in found.fields if field.name != _CORRUPT])
