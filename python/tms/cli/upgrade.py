"""`tms upgrade`: a data directory on LevelDB goes over to RocksDB, for good."""

import click

from tms.cli.session import Session, Shared, dry_run_option, yes_option


@click.command("upgrade", cls=Shared)
@dry_run_option
@yes_option
@click.pass_obj
def command(session: Session, dry_run: bool, yes: bool) -> None:
    """Move a data directory from LevelDB to RocksDB. Needs --data.

    For Pythons that plyvel has no wheels for. There is no way back, so copy the directory first.
    Every map is built anew beside the old one, so there must be space for them, but for large
    values, which are shared. What is interrupted changes nothing.
    """
    _, data = session.target()
    if data is None:
        raise click.UsageError(
            "upgrade works on a data directory, not on a service: give it with --data."
        )
    what = f"The data directory {data} will have RocksDB from now on, and no way back to LevelDB."
    if not session.proceed(what, data.name, dry_run, yes):
        return
    from tms.store.leveldb.upgrade import upgrade

    names = list(upgrade(data))
    session.say(f"{data} has RocksDB; maps: {len(names)}")
    session.show_result({"data": str(data), "store": "rocksdb", "maps": len(names)})
