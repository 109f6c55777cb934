"""The topics of a job, their place, and the errors of jobs.

* An error that TMS raised in one of Spark's processes reaches the caller as that error, not as a
  trace of Java and Python. A refusal by Spark is `Invalid`; the trace is its cause.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException, PySparkException

import tms.errors
from tms.errors import Invalid, TMSError
from tms.spark.source.options import TopicPlace, read_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ProgressCallback = Callable[[int, int], None]  # what is done, of how much
Names = str | Sequence[str]  # one topic, or several

_RAISED = re.compile(r"^tms\.errors\.(\w+): (.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Subject:
    """Topics, their place, and the options with which the data source finds them."""

    topics: tuple[str, ...]
    place: TopicPlace
    options: Mapping[str, str]

    @classmethod
    def of(cls, topics: Names, url: str | None, token: str | None, store: str | None) -> "Subject":
        """These topics at a service or in an HBase. Raises `Invalid`."""
        named = [topics] if isinstance(topics, str) else topics
        if not named:
            raise Invalid("No topic is named; name at least one.", field="topics")
        if store is None and url is not None:
            place = {"tms.url": url, "tms.token": token or ""}
        elif store is not None and url is None:
            place = {"source": "hbase", "tms.store": store}
        else:
            raise Invalid(
                "A job reads from a service or from HBase: give one of url and store.",
                field="url",
            )
        options = {"subscribe": ",".join(named)} | place
        meant = read_options(options)
        return cls(meant.subscription.names, meant.place, options)

    def rows(self, spark: "SparkSession", more: Mapping[str, str] | None = None) -> "DataFrame":
        """All messages."""
        return spark.read.format("tms").options(**self.options, **(more or {})).load()


@contextmanager
def errors_told() -> Iterator[None]:
    """Raise an error of TMS from one of Spark's processes as itself, and an error of Spark as an
    error of TMS."""
    try:
        yield
    except PySparkException as error:
        raised = _RAISED.findall(str(error))
        if raised:
            name, message = raised[-1]
            kind = getattr(tms.errors, name, TMSError)
            raise kind(message) from error
        said = str(error).strip().partition("\n")[0]
        if isinstance(error, AnalysisException):
            raise Invalid(said) from error
        raise TMSError(f"Spark failed: {said}") from error
