"""The outbox: an application writes rows and the messages about them in its own transaction; a
relay moves the messages to a topic, each exactly once and in order.

    python examples/outbox.py

For programs that already have a database and its transactions. The relay deletes rows of the outbox
and sends their messages in one transaction of TMS, so it may die at any moment.
"""

import tempfile
from pathlib import Path

import sqlalchemy as sa

import tms
from tms.sql import SqlDatabase

BATCH = 100
_metadata = sa.MetaData()
ACCOUNTS = sa.Table(
    "accounts",
    _metadata,
    sa.Column("name", sa.String, primary_key=True),
    sa.Column("cents", sa.Integer, nullable=False),
)
OUTBOX = sa.Table(
    "outbox",
    _metadata,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("key", sa.LargeBinary),
    sa.Column("value", sa.LargeBinary, nullable=False),
)


def prepare(engine: sa.Engine, bus: tms.Bus) -> SqlDatabase:
    """The tables and the topic."""
    _metadata.create_all(engine)
    bus.create_topic("payments")
    return SqlDatabase(engine)


def pay(engine: sa.Engine, name: str, cents: int) -> None:
    """The application: a row and the message about it, in one transaction of the database."""
    with engine.begin() as connection:
        found = connection.execute(sa.select(ACCOUNTS.c.cents).where(ACCOUNTS.c.name == name))
        before = found.scalar_one_or_none()
        if before is None:
            connection.execute(ACCOUNTS.insert().values(name=name, cents=cents))
        else:
            changed = ACCOUNTS.update().where(ACCOUNTS.c.name == name)
            connection.execute(changed.values(cents=before + cents))
        message = f"{name} paid {cents}".encode()
        connection.execute(OUTBOX.insert().values(key=name.encode(), value=message))


def relay(bus: tms.Bus, database: SqlDatabase, batch: int = BATCH) -> int:
    """Move the outbox to the topic; returns the number of messages. One relay at a time."""
    database.recover(bus)
    moved = 0
    while True:
        with bus.transaction() as tx:
            rows = tx.join(database.rows())
            found = rows.execute(sa.select(OUTBOX).order_by(OUTBOX.c.number).limit(batch)).all()
            for row in found:
                tx.send("payments", row.value, key=row.key)
            if found:
                rows.execute(OUTBOX.delete().where(OUTBOX.c.number <= found[-1].number))
        moved += len(found)
        if len(found) < batch:
            return moved


def main() -> None:
    with tempfile.TemporaryDirectory() as name, tms.open(Path(name) / "data") as bus:
        engine = sa.create_engine(f"sqlite:///{Path(name) / 'bank.db'}")
        database = prepare(engine, bus)
        for number in range(5):
            pay(engine, "ann" if number % 2 else "bob", 100 * number)
        print(f"{relay(bus, database)} messages relayed")
        for message in bus.consumer("payments", stop_at_end=True):
            print(f"  {(message.value or b'').decode()}")


if __name__ == "__main__":
    main()
