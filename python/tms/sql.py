"""A SQL database in transactions of TMS, through SQLAlchemy Core: rows, messages and positions
agree exactly once, whatever dies and whenever.

    database = SqlDatabase(sqlalchemy.create_engine("sqlite:///orders.db"))
    database.recover(bus)                              # when the program starts
    with bus.transaction() as tx:
        rows = tx.join(database.rows())
        rows.execute(orders.insert().values(…))
        tx.send("invoices", …)
        tx.ack(consumer)

Two systems cannot commit at one moment, so one decides: the SQL database. Its commit contains the
rows and, in a fence table, the whole request to TMS (messages, positions and a token). Then the
request is sent, and its row deleted.

    dies before the SQL commit          neither rows nor messages; the input is processed again
    dies between the two commits        `recover` sends the request of the fence row
    dies before the row is deleted      `recover` sends it again; by its token it is done once

Invariants

* Nothing is sent that the database has not committed; everything that it has committed is sent,
  at the latest by `recover`, which is to be called before anything new is done.
* A group's position moves in the database first, by comparison with what the transaction started
  from: of two consumers with the same input only one commits its rows.
* TMS remembers tokens of its newest 200,000 transactions. Of one that moved positions these tell
  whether it was done; any other must be recovered before so many have followed, or it may be done
  twice. A fence row that is older than `RECOVER_HOURS` is left to people.
* Once the database has committed, or may have, an error of the transaction is `CommitUnfinished`:
  it is not to be done again, `recover` finishes it.
* A power loss takes neither rows nor messages if the database syncs its commits, as SQLite does
  unless told otherwise; the messages always are.
"""

from collections.abc import Iterable
from dataclasses import replace

from msgspec import structs

from tms.api.commits import decode_commit, encode_commit
from tms.client.client import Bus
from tms.client.participants import Transacted
from tms.errors import CommitUnfinished, Conflict, Invalid
from tms.model.topic import TOPIC_NAME_CHARS_MAX, Durability
from tms.model.transaction import Commit, PositionChange
from tms.runtime.clock import Clock, SystemClock
from tms.runtime.extras import needed

with needed("tms.sql", "sql"):
    import sqlalchemy as sa

RECOVER_HOURS = 24
_metadata = sa.MetaData()
_FENCE = sa.Table(
    "tms_fence",
    _metadata,
    sa.Column("token", sa.String(64), primary_key=True),
    sa.Column("created_s", sa.BigInteger, nullable=False),
    sa.Column("request", sa.LargeBinary, nullable=False),
)
_POSITIONS = sa.Table(
    "tms_positions",
    _metadata,
    sa.Column("consumer_group", sa.String(255), primary_key=True),
    sa.Column("topic", sa.String(TOPIC_NAME_CHARS_MAX), primary_key=True),
    sa.Column("partition_number", sa.Integer, primary_key=True),
    sa.Column("position", sa.String(64), nullable=False),
)


class SqlDatabase:
    """A database that takes part in transactions. Thread-safe, as its engine is."""

    def __init__(self, engine: sa.Engine, clock: Clock | None = None) -> None:
        """Makes the tables `tms_fence` and `tms_positions` if they are not there."""
        self._engine = engine
        self._clock = clock or SystemClock()
        _metadata.create_all(engine)

    def rows(self) -> "SqlRows":
        """A participant for `tx.join(database.rows())`."""
        return SqlRows(self._engine, self._clock)

    def recover(self, bus: Bus) -> int:
        """Send what the database committed and TMS may not have got; how many requests. Call it
        when the program starts. Raises `Conflict` for a request that is too old to be sent without
        asking."""
        with self._engine.connect() as connection:
            found = connection.execute(sa.select(_FENCE).order_by(_FENCE.c.created_s)).all()
        for token, created_s, raw in found:
            request = decode_commit(raw, 0)
            if _is_done(bus, request):
                _forget(self._engine, token)
                continue
            if self._clock.now_ms() // 1_000 - created_s > RECOVER_HOURS * 3_600:
                raise Conflict(
                    f"The request {token} in tms_fence is older than {RECOVER_HOURS} hours, so "
                    "TMS may not know any more whether it did it. See if its messages are there; "
                    "then delete the row, or set created_s to now to have it sent.",
                    token=token,
                )
            bus.admin.transactions.commit(request)
            _forget(self._engine, token)
        return len(found)

    def forget_positions(self, topic: str, *, group: str) -> None:
        """Forget the positions of a group in this database, after the group was set back by
        hand."""
        of_it = (_POSITIONS.c.consumer_group == group) & (_POSITIONS.c.topic == topic)
        with self._engine.begin() as connection:
            connection.execute(_POSITIONS.delete().where(of_it))


class SqlRows:
    """The rows of one transaction; a `Participant`."""

    def __init__(self, engine: sa.Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self._connection: sa.Connection | None = None
        self._token = ""
        self.decided = False  # whether the database has committed, or may have

    def start(self, transaction: Transacted) -> sa.Connection:
        """The connection to write with; it commits by itself when the transaction does."""
        if self._connection is not None:
            raise Invalid("These rows belong to a transaction already; call rows() for another.")
        self._connection = self._engine.connect()
        self._connection.begin()
        return self._connection

    def changes(self) -> Iterable[bytes]:
        """None: the database finds conflicts of its rows by itself."""
        return ()

    def persist(self, request: Commit) -> Commit:
        """Commit the rows, and with them the request that is sent next."""
        assert self._connection is not None
        if request.changes or request.transaction_id:
            raise Invalid(
                "A SQL database decides by itself whether a transaction commits, so nothing else "
                "that could refuse it can take part: no tx.change, no tables, no more than 15 MiB."
            )
        for change in request.positions:
            self._move(change)
        request = _sure(request)
        raw = b"".join(encode_commit(request))
        now_s = self._clock.now_ms() // 1_000
        row = {"token": request.token, "created_s": now_s, "request": raw}
        self._connection.execute(_FENCE.insert().values(row))
        self._token = request.token
        self._commit(self._connection)
        return request

    def _commit(self, connection: sa.Connection) -> None:
        try:
            connection.commit()
        except BaseException as error:
            # SQLAlchemy gives a connection whose commit failed back with its transaction open.
            connection.invalidate()
            self.decided = isinstance(error, Exception) and not self._is_undone(error)
            if self.decided:
                raise CommitUnfinished(
                    f"It is not known whether the database has committed: {error}. Do not do the "
                    "transaction again; recover the database, which sends its messages if it did.",
                    token=self._token,
                ) from error
            raise
        finally:
            connection.close()
        self.decided = True

    def _is_undone(self, error: Exception) -> bool:
        """True if a failed commit surely left nothing."""
        if isinstance(error, sa.exc.DBAPIError) and error.connection_invalidated:
            return False  # the database may still be about to do it
        mine = sa.select(_FENCE.c.token).where(_FENCE.c.token == self._token)
        try:
            with self._engine.connect() as connection:
                return connection.execute(mine).first() is None
        except sa.exc.SQLAlchemyError:
            return False

    def post_commit(self) -> None:
        """TMS has done it: the request is not needed any more."""
        _forget(self._engine, self._token)

    def roll_back(self) -> None:
        """Give the rows up, unless the database has committed them."""
        if self._connection is not None and not self._connection.closed:
            self._connection.rollback()
            self._connection.close()

    def _move(self, change: PositionChange) -> None:
        """Move a group's position in the database, unless another consumer did meanwhile."""
        assert self._connection is not None
        group, topic, partition = change.key
        place = (
            (_POSITIONS.c.consumer_group == group)
            & (_POSITIONS.c.topic == str(topic))
            & (_POSITIONS.c.partition_number == partition)
        )
        expected = change.expected or ""
        known = _POSITIONS.c.position == expected
        if expected.startswith("after:"):  # a group that was moved on by hand is further
            known = _POSITIONS.c.position.between("after:", expected)
        moved = self._connection.execute(
            _POSITIONS.update().where(place & known).values(position=str(change.position))
        )
        if moved.rowcount:
            return
        try:
            self._connection.execute(
                _POSITIONS.insert().values(
                    consumer_group=group,
                    topic=str(topic),
                    partition_number=partition,
                    position=str(change.position),
                )
            )
        except sa.exc.IntegrityError as exc:
            raise Conflict(
                f"Another consumer of the group {group} has processed partition {partition} of "
                f"{topic} further than {change.expected or 'its beginning'}. Go on from where the "
                "group stands now.",
                group=group,
                topic=str(topic),
                partition=partition,
            ) from exc


def _is_done(bus: Bus, request: Commit) -> bool:
    """True if the positions show that the request was done: only this database moves them there.
    They show it even if TMS has forgotten the token."""
    return bool(request.positions) and all(
        bus.positions(str(one.key.topic), group=one.key.group).get(one.key.partition)
        == one.position
        for one in request.positions
    )


def _sure(request: Commit) -> Commit:
    """The request in a form that may be sent again at any time: the database has compared the
    positions. It is synced, or a power loss could take the messages of rows that are there."""
    moves = tuple(replace(one, expected=None, owner=None) for one in request.positions)
    return structs.replace(request, positions=moves, durability=Durability.SYNCED)


def _forget(engine: sa.Engine, token: str) -> None:
    with engine.begin() as connection:
        connection.execute(_FENCE.delete().where(_FENCE.c.token == token))
