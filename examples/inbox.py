"""The inbox: a consumer with one effect for each message, however often the message is delivered.

    python examples/inbox.py

For consumers whose database cannot join a transaction of TMS, or whose messages come from a topic
they only read. One transaction of the database stores the effect of a message and its id. The
group's position moves afterwards, and a message that comes again is recognised by its id.
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
    """Apply the effect of a message and note its id. False if it was applied before."""
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
    except sa.exc.IntegrityError:  # its id is in the table
        return False
    return True


def consume(bus: tms.Bus, engine: sa.Engine, group: str = "counters") -> int:
    """Handle the group's unread messages; returns the number that had an effect."""
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
        bus.set_positions("words", {0: "earliest"}, group="counters")  # deliver all again
        print(f"{consume(bus, engine)} of them again")


if __name__ == "__main__":
    main()
