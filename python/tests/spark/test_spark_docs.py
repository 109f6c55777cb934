"""Pages and examples that use Spark are true: they run unchanged, in the session of all tests,
which `tms.spark.session` finds."""

import re
import runpy
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.snippets_kit import PAGES, ROOT, run_page, starts_spark, url
from tests.spark_kit import spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark", "url"]

pytestmark = pytest.mark.timeout(300)  # a cold JVM on a busy machine
EXAMPLES = ROOT / "examples"


# Files and directories of Spark: a relative path is below the directory in which Java began.
_RELATIVE = re.compile(r'"([\w-]+\.(?:parquet|checkpoint))"')


@pytest.fixture(autouse=True)
def session(spark: "SparkSession", monkeypatch: pytest.MonkeyPatch) -> None:
    """The session of all tests, which stays when a program stops its own."""
    monkeypatch.setattr(spark, "stop", lambda: None)


@pytest.mark.parametrize("page", [page for page in PAGES if starts_spark(page)])
def test_the_snippets_of_a_page_with_spark_run(
    page: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_page(page, url, lambda text: _RELATIVE.sub(rf'"{tmp_path}/\1"', text))


def test_the_pipeline_of_spark_counts_archives_and_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program, made = EXAMPLES / "flights_pipeline.py", tmp_path / "made"
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setattr("sys.argv", [str(program), str(made), "12000"])
    runpy.run_path(str(program), run_name="__main__")
    printed = capsys.readouterr().out
    assert printed.count("✓") == 4, printed
    assert "counted in 4 batches" in printed
    assert {"archive", "report.csv", "report.png"} == {one.name for one in made.iterdir()}
