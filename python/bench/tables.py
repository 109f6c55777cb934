"""The tables of docs/benchmarks.md, from the files that the runs have written.

    python -m bench.tables bench FILE…      JSON lines of `make bench`
    python -m bench.tables peers FILE…      JSON lines of the peers harness

Medians over all runs in the files; CPU is that of server and client together, the least of all
runs, because other processes on the machine can only add to it.
"""

import json
import statistics
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Row = dict[str, Any]
_SIZES = ((100, "100 B"), (1024, "1 KiB"))


def main() -> None:
    """Print the requested tables."""
    kind, *files = sys.argv[1:]
    rows = [json.loads(line) for file in files for line in Path(file).read_text().splitlines()]
    for line in {"bench": goals, "peers": peers}[kind](rows):
        print(line)


def goals(rows: list[Row]) -> Iterable[str]:
    """Every number that has a goal, then the others."""
    for title, chosen in (
        ("Goals", [row for row in rows if row["goal"] is not None]),
        ("Everything else", [row for row in rows if row["goal"] is None]),
    ):
        yield f"\n### {title}\n"
        yield "| | | measured | goal | |"
        yield "|---|---|---:|---:|---|"
        for row in chosen:
            goal, met = "", ""
            if row["goal"] is not None:
                least, most = row["goal"]["at_least"], row["goal"]["at_most"]
                goal = f"≥ {least:g}" if least is not None else f"≤ {most:g}"
                met = "met" if row["met"] else "missed"
            measured = f"{_number(row['value'])} {row['unit']}"
            yield f"| {row['benchmark']} | {row['what']} | {measured} | {goal} | {met} |"


def peers(rows: list[Row]) -> Iterable[str]:
    """One line for each peer, in the form of the harness's own README."""
    rows = [row for row in rows if "error" not in row]
    names = list(dict.fromkeys(row["peer"] for row in rows))

    def of(name: str, workload: str, size: int) -> list[Row]:
        return [r for r in rows if (r["peer"], r["w"], r["size"]) == (name, workload, size)]

    yield (
        "| peer | W1 100 B (CPU) | W1 1 KiB (CPU) | W2 100 B / 1 KiB | W3 100 B (CPU) | "
        "W3 1 KiB (CPU) | W4 p50 / p99 ms | W5 1 KiB p50 ms |"
    )
    yield "|---|---:|---:|---:|---:|---:|---:|---:|"
    for name in names:
        cells = [_rate_and_cpu(of(name, "W1", size)) for size, _ in _SIZES]
        cells.append(" / ".join(_rate(of(name, "W2", size)) for size, _ in _SIZES))
        cells += [_rate_and_cpu(of(name, "W3", size)) for size, _ in _SIZES]
        paced = of(name, "W4", 100)
        cells.append(f"{_median(paced, 'p50_ms')} / {_median(paced, 'p99_ms')}" if paced else "")
        cells.append(_median(of(name, "W5", 1024), "p50_ms"))
        yield f"| {name} | {' | '.join(cells)} |"
    yield from _leads(names, of)


def _leads(names: list[str], of: Callable[[str, str, int], list[Row]]) -> Iterable[str]:
    """The lead of TMS over the best peer, within these runs."""
    mine = [name for name in names if name.startswith("tms")]
    yield ""
    for name in mine:
        for workload in ("W1", "W2", "W3"):
            for size, text in _SIZES:
                own = of(name, workload, size)
                others = {
                    peer: statistics.median(row["rate"] for row in its)
                    for peer in names
                    if peer not in mine and (its := of(peer, workload, size))
                }
                if own and others:
                    best = max(others, key=lambda peer: others[peer])
                    lead = statistics.median(row["rate"] for row in own) / others[best]
                    yield f"* {name}, {workload} {text}: {lead:.2f} × the best peer ({best})"


def _rate(rows: list[Row]) -> str:
    return f"{statistics.median(row['rate'] for row in rows) / 1e3:,.0f}" if rows else "–"


def _rate_and_cpu(rows: list[Row]) -> str:
    if not rows:
        return "–"
    cpu = min(row["srv_cpu_per_M"] + row["cli_cpu_per_M"] for row in rows)
    return f"{_rate(rows)} ({cpu:.2g})"


def _median(rows: list[Row], field: str) -> str:
    found = [row[field] for row in rows if row.get(field) is not None]
    return f"{statistics.median(found):.2f}" if found else "–"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


if __name__ == "__main__":
    main()
