"""The inbox: a consumer whose effect happens once for each message, however often it gets it.

    python examples/inbox.py

For consumers whose database cannot join a transaction of TMS, or whose messages come from a topic
they only read. The id of each message goes into a table in the same transaction of the database as
its effect; the group's position moves afterwards, and what comes again is recognised.
"""

import tempfile
from pathlib import Path

import sqlalchemy as sa

import tms

_metadata = sa.MetaData()
TOTALS = sa.Table(
    "totals",
    _metadata,
    sa.Column("word", sa.String, primary_key=True),
    sa.Column("times", sa.Integer, nullable=False),
)
INBOX = sa.Table(
    "inbox",
    _metadata,
    sa.Column("topic", sa.String, primary_key=True),
    sa.Column("partition", sa.Integer, primary_key=True),
    sa.Column("message_id", sa.String(40), primary_key=True),
)


def prepare(engine: sa.Engine) -> None:
    """The tables."""
    _metadata.create_all(engine)


def handle(engine: sa.Engine, message: tms.Message) -> bool:
    """The effect of a message and the note that it happened; False if it had happened before."""
    note = {"topic": message.topic, "partition": message.partition, "message_id": str(message.id)}
    try:
        with engine.begin() as connection:
            connection.execute(INBOX.insert().values(note))
            word = (message.value or b"").decode()
            before = connection.execute(
                sa.select(TOTALS.c.times).where(TOTALS.c.word == word)
            ).scalar_one_or_none()
            if before is None:
                connection.execute(TOTALS.insert().values(word=word, times=1))
            else:
                changed = TOTALS.update().where(TOTALS.c.word == word)
                connection.execute(changed.values(times=before + 1))
    except sa.exc.IntegrityError:  # its id is there
        return False
    return True


def consume(bus: tms.Bus, engine: sa.Engine, group: str = "counters") -> int:
    """Handle what the group has not handled; how many messages had an effect."""
    consumer = bus.consumer("words", group=group, stop_at_end=True)
    done = 0
    for message in consumer:
        done += handle(engine, message)
        consumer.ack()
    return done


def main() -> None:
    with tempfile.TemporaryDirectory() as name, tms.open(Path(name) / "data") as bus:
        engine = sa.create_engine(f"sqlite:///{Path(name) / 'words.db'}")
        prepare(engine)
        bus.create_topic("words")
        for word in ["to", "be", "or", "not", "to", "be"]:
            bus.publish("words", word.encode())
        print(f"{consume(bus, engine)} messages counted")
        bus.set_positions("words", {0: "earliest"}, group="counters")  # everything comes once more
        print(f"{consume(bus, engine)} of them again")


if __name__ == "__main__":
    main()
