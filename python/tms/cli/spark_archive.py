"""`tms spark archive` and `tms spark restore`: topics as Parquet files, and back."""

import click
import msgspec

from tms.cli.session import TOPIC, Session, session_command, topic_argument
from tms.cli.spark_running import (
    counted,
    reading_from,
    service_of,
    spark_options,
    started,
    store_option,
    watched,
)
from tms.spark.archive_limits import EVERY, ROWS_PER_BATCH, ROWS_PER_FILE


@session_command("archive")
@click.argument("topics", type=TOPIC, nargs=-1, required=True)
@click.argument("directory")
@click.option(
    "--rows-per-batch", type=click.IntRange(min=1), default=ROWS_PER_BATCH, show_default=True
)
@click.option(
    "--rows-per-file", type=click.IntRange(min=1), default=ROWS_PER_FILE, show_default=True
)
@click.option("--allow-loss", is_flag=True, help="Go on behind messages that have expired.")
@click.option("--follow", is_flag=True, help="Go on for ever.")
@click.option(
    "--every", default=EVERY, show_default=True, help="How often --follow looks for more."
)
@store_option
@spark_options
def archive(
    session: Session,
    /,
    topics: tuple[str, ...],
    directory: str,
    rows_per_batch: int,
    rows_per_file: int,
    allow_loss: bool,
    follow: bool,
    every: str,
    store: str | None,
    master: str | None,
    confs: tuple[str, ...],
) -> None:
    """Add what is new in TOPICS to the Parquet files in DIRECTORY, by topic and UTC day.

    \b
      tms spark archive flights /archive/flights
      tms spark archive orders payments s3a://bucket/shop --follow
    """
    place = reading_from(session, store)
    with started(master, confs) as spark, counted(session, "archiving") as progress:
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
@click.argument("directory")
@topic_argument
@click.option("--from-topic", type=TOPIC, help="Its name in the archive. [TOPIC]")
@click.option("--append", is_flag=True, help="Even if TOPIC has messages already.")
@spark_options
def restore(
    session: Session,
    /,
    directory: str,
    topic: str,
    from_topic: str | None,
    append: bool,
    master: str | None,
    confs: tuple[str, ...],
) -> None:
    """Publish what is archived in DIRECTORY to TOPIC, in one transaction.

    TOPIC is made if it is not there.

    \b
      tms spark restore /archive/flights flights-again --from-topic flights
    """
    place = service_of(session)
    with started(master, confs) as spark, watched(session, spark, "restoring"):
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
