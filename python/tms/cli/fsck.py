"""`tms fsck`: reads everything in a data directory, names what is damaged, mends it if asked.

Without `--repair` nothing changes: a copy is read, whose tables are links.
"""

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import click
import msgspec

from tms.cli.checks.verify import Damage, Mend, Severity, Totals, Verifier
from tms.cli.output import Format, columns, escape, write
from tms.cli.parameters import session_command
from tms.cli.session import Session

_PASSES = 4


@session_command("fsck")
def command(
    session: Session,
    repair: Annotated[bool, "Mend what can be; the damaged maps are kept."] = False,
) -> int:
    """Verify a data directory: every checksum, header, offset and id. Needs --data.

    Ends with 1 if something is damaged, and still is after --repair.
    """
    _, data = session.target()
    if data is None:
        raise click.UsageError("fsck reads a data directory, not a service: give it with --data.")
    steps: list[str] = []
    findings, totals = _verify(data)
    if repair:
        from tms.cli.checks.repair import mend

        for _ in range(_PASSES):
            if all(finding.mend is Mend.NOTHING for finding in findings):
                break
            for step in mend(data, findings, session.clock.now_ms()):
                session.say(step)
                steps.append(step)
            findings, totals = _verify(data)
    _show(session, findings, totals, steps)
    return 1 if any(finding.severity is Severity.DAMAGE for finding in findings) else 0


def _verify(data: Path) -> tuple[list[Damage], Totals]:
    """The findings of two looks: a directory in use changes while it is copied, so one look is not
    enough."""
    findings, totals = _verify_once(data)
    if findings:
        again, totals = _verify_once(data)
        findings = [finding for finding in again if finding in findings]
    return findings, totals


def _verify_once(data: Path) -> tuple[list[Damage], Totals]:
    from tms.store.leveldb import LevelDBStore, read_only_copy

    kept = data / "damaged"
    mended = [entry.name for entry in kept.iterdir()] if kept.is_dir() else []
    names = frozenset(name.rpartition(".")[0].replace("+", "/") for name in mended)
    with read_only_copy(data) as copy:
        paths = os.path.realpath(copy), os.path.realpath(data)  # errors name files of the copy
        store = LevelDBStore(copy, create=False)
        try:
            verifier = Verifier(store, names)
            damages = [
                replace(damage, what=damage.what.replace(*paths)) for damage in verifier.run()
            ]
            return damages, verifier.totals
        finally:
            store.close()


def _show(session: Session, findings: list[Damage], totals: Totals, steps: list[str]) -> None:
    rows = [
        {"severity": finding.severity.value, **columns(finding, "where", "what", "map")}
        for finding in findings
    ]
    document = {
        "damaged": any(finding.severity is Severity.DAMAGE for finding in findings),
        "read": msgspec.to_builtins(totals),
        "repaired": steps,
        "findings": [
            {**row, "row": finding.row.hex(), "mend": finding.mend.value}
            for row, finding in zip(rows, findings, strict=True)
        ],
    }
    if session.format is not Format.TABLE:
        session.show(document, rows)
        return
    for finding in findings:
        write(f"{finding.severity:<7} {escape(finding.where)}: {escape(finding.what)}\n")
        if finding.mend is not Mend.NOTHING:
            write(f"        --repair would {finding.mend}\n")
    session.say(
        f"read {totals.topics:,} topics, {totals.segments:,} segments, {totals.blocks:,} blocks, "
        f"{totals.messages:,} messages, {totals.bytes:,} bytes: "
        + ("damaged" if document["damaged"] else "intact")
    )
