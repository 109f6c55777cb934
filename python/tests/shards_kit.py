"""The journals of shards, shortened when a test says so."""

from tms.engine import Engine


def shorten_journals(engine: Engine, transactions_max: int, positions_max: int) -> None:
    """Keep the state in journals that a start would have to read more of than so many entries."""
    engine.transactions.manager.shorten(transactions_max)
    engine.groups.shorten_journals(positions_max, engine.shards._commits.durable)
