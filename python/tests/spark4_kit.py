"""The other Spark: tests with Spark 3.5 send requests to a process of another environment, with
Spark 4, which reads topics through the data source `tms`.

    test (Spark 3.5)  ── {"options": …, "into": PATH} ─▶  python -m tests.spark4_kit (Spark 4)
                      ◀── {"error": null} ─────────────   rows at PATH, as an Arrow file

Invariants

* Both ends are this file. Requests and answers are lines of JSON; all other output goes to the log.
* The process ends when its standard input does: with the process of the test, however that ends.
* Its Python is the one that TMS_TEST_SPARK4_PYTHON names, else that of `make env`. If it does not
  exist, or has no Spark 4, tests fail.
"""

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, cast

import pyarrow.ipc

ROOT = Path(__file__).resolve().parents[2]
PYTHON = "TMS_TEST_SPARK4_PYTHON"
ANSWER_S = 200  # the first answer waits for a cold JVM on a busy machine
STOP_S = 60
_LOG_CHARS = 3_000
Row = dict[str, Any]


class Spark4:
    """A Spark 4 in a process of its own."""

    def __init__(self, process: "subprocess.Popen[str]", folder: Path) -> None:
        self._process = process
        self._folder = folder
        self._asked = 0

    def rows(self, **options: str) -> list[Row]:
        """The rows of the data source with these options, in their order."""
        self._asked += 1
        into = self._folder / f"{self._asked}.arrow"
        asked, answers = cast(IO[str], self._process.stdin), cast(IO[str], self._process.stdout)
        with suppress(BrokenPipeError):  # its log says why
            asked.write(json.dumps({"options": options, "into": str(into)}) + "\n")
            asked.flush()
        ready, _, _ = select.select([answers], [], [], ANSWER_S)
        answer = answers.readline() if ready else ""
        log = log_of(self._folder).read_text()[-_LOG_CHARS:]
        assert answer, f"Spark 4 did not answer; its log ends:\n{log}"
        error = json.loads(answer)["error"]
        assert error is None, f"Spark 4 cannot read with {options}: {error}"
        with pyarrow.ipc.open_file(into) as found:
            return cast(list[Row], found.read_all().to_pylist())


@contextmanager
def spark4(folder: Path) -> Iterator[Spark4]:
    """A Spark 4 that keeps its files in a folder."""
    python = os.environ.get(PYTHON) or str(ROOT / ".venv" / "bin" / "python")
    assert Path(python).exists(), (
        f"There is no {python}, which is to run Spark 4: make it with `make env`, or name the "
        f"Python of an environment with pyspark 4 in {PYTHON}."
    )
    environment = {
        name: value for name, value in os.environ.items() if "SPARK" not in name
    }  # variables of this process's pyspark are for this Spark
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "python"), str(ROOT)])
    with (
        log_of(folder).open("wb") as log,
        subprocess.Popen(
            [python, "-m", "tests.spark4_kit", str(folder)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        try:
            yield Spark4(process, folder)
        finally:
            with suppress(BrokenPipeError):
                cast(IO[str], process.stdin).close()
            try:
                process.wait(STOP_S)
            finally:
                process.kill()


def log_of(folder: Path) -> Path:
    """The log of the process."""
    return folder / "log"


def serve(folder: Path) -> None:
    """Answer requests until there are no more."""
    from tests.spark_kit import started

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Spark and its workers write to the log
    spark = started("local[2]", folder)
    for line in sys.stdin:
        asked = json.loads(line)
        error = None
        try:
            found = spark.read.format("tms").options(**asked["options"]).load().toArrow()
            with pyarrow.ipc.new_file(asked["into"], found.schema) as into:
                into.write_table(found)
        except Exception as failure:  # the caller gets it
            error = str(failure)
        print(json.dumps({"error": error}), file=answers, flush=True)
    spark.stop()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
