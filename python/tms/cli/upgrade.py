"""`tms upgrade`: a data directory on LevelDB goes over to RocksDB, for good."""

from pathlib import Path
from typing import Annotated

import click

from tms.cli.parameters import DryRunOption, YesOption, session_command
from tms.cli.session import Session


@session_command("upgrade")
def command(
    session: Session,
    check: Annotated[bool, "Only describe the directory and the necessary steps."] = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Move a data directory from LevelDB to RocksDB. Needs --data.

    For Pythons that plyvel has no wheels for. There is no way back, so copy the directory first.
    Every map is rebuilt beside the old one, so there must be space for them, except for large
    values, which are shared. An interrupted upgrade changes nothing.

    With --check nothing changes: it says whether this release reads the directory, also one that is
    in use, and what an upgrade would do. It ends with 78 when this one does not read it.
    """
    _, data = session.target()
    if data is None:
        raise click.UsageError(
            "upgrade works on a data directory, not on a service: give it with --data."
        )
    if check:
        _check(session, data)
        return
    what = f"The data directory {data} will have RocksDB from now on, and no way back to LevelDB."
    if not session.proceed(what, data.name, dry_run, yes):
        return
    from tms.store.leveldb.upgrade import upgrade

    names = list(upgrade(data))
    session.say(f"{data} has RocksDB; maps: {len(names)}")
    session.show_result({"data": str(data), "store": "rocksdb", "maps": len(names)})


def _check(session: Session, data: Path) -> None:
    from tms.runtime.version import VERSION
    from tms.store.leveldb.upgrade import look

    found = look(data)
    session.say(
        f"{data} has format {found.format} and the database {found.store}; maps: {found.maps:,}. "
        f"This release, {VERSION}, reads and writes it as it is."
    )
    if found.anew:
        session.say(
            f"tms upgrade would move it to rocksdb, for good: {found.anew:,} maps are rebuilt, "
            f"with up to {found.anew_bytes:,} bytes; {found.free_bytes:,} are free. No need to, "
            "unless it goes to a Python without plyvel."
        )
    else:
        session.say("There is nothing to upgrade.")
    session.show_result({"data": str(data), **found._asdict()})
