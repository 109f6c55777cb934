"""The journals of shards, compacted when a test says so."""

from tms.engine.engine import Engine


def shorten_journals(engine: Engine, transactions_max: int, positions_max: int) -> None:
    """Compact journals with more entries than this, which a start would have to read."""
    engine.transactions.manager.shorten(transactions_max)
    engine.groups.shorten_journals(positions_max, engine.shards._commits.durable)
