"""`tms spark archive` and `tms spark restore`: topics as Parquet files, and back."""

from typing import Annotated

import click
import msgspec

from tms.cli.parameters import TOPIC, TopicParameter, session_command
from tms.cli.session import Session
from tms.cli.spark_running import (
    SparkOptions,
    StoreOption,
    counted,
    reading_from,
    service_of,
    started,
    watched,
)
from tms.spark.archive_limits import EVERY, ROWS_PER_BATCH, ROWS_PER_FILE


@session_command("archive")
def archive(
    session: Session,
    options: SparkOptions,
    topics: Annotated[tuple[str, ...], TOPIC],
    directory: str,
    rows_per_batch: Annotated[int, click.IntRange(min=1), {"show_default": True}] = ROWS_PER_BATCH,
    rows_per_file: Annotated[int, click.IntRange(min=1), {"show_default": True}] = ROWS_PER_FILE,
    allow_loss: Annotated[bool, "Go on behind messages that have expired."] = False,
    follow: Annotated[bool, "Go on for ever."] = False,
    every: Annotated[str, {"show_default": True}, "How often --follow looks for more."] = EVERY,
    store: StoreOption = None,
) -> None:
    """Add what is new in TOPICS to the Parquet files in DIRECTORY, by topic and UTC day.

    \b
      tms spark archive flights /archive/flights
      tms spark archive orders payments s3a://bucket/shop --follow
    """
    place = reading_from(session, store)
    with started(options) as spark, counted(session, "archiving") as progress:
        from tms.spark.jobs import archive as run

        done = run(
            spark,
            topics,
            directory,
            **place._asdict(),
            rows_per_batch=rows_per_batch,
            rows_per_file=min(rows_per_file, rows_per_batch),
            allow_loss=allow_loss,
            follow=follow,
            every=every,
            progress=progress,
        )
    session.say(f"archived {done.rows:,} messages in {done.batches:,} batches")
    session.show_result({"messages": done.rows, "batches": done.batches})


@session_command("restore")
def restore(
    session: Session,
    options: SparkOptions,
    directory: str,
    topic: TopicParameter,
    from_topic: Annotated[str | None, TOPIC, "Its name in the archive. [TOPIC]"] = None,
    append: Annotated[bool, "Even if TOPIC has messages already."] = False,
) -> None:
    """Publish what is archived in DIRECTORY to TOPIC, in one transaction.

    TOPIC is made if it is not there.

    \b
      tms spark restore /archive/flights flights-again --from-topic flights
    """
    place = service_of(session)
    with started(options) as spark, watched(session, spark, "restoring"):
        from tms.spark.jobs import restore as run

        done = run(
            spark,
            directory,
            topic,
            place.url or "",
            token=place.token,
            source=from_topic,
            append=append,
        )
    kept = "each in its partition" if done.same_partitions else "partitioned by key"
    session.say(f"restored {done.messages:,} messages to {topic}, {kept}")
    session.show_result(msgspec.to_builtins(done._asdict()))
