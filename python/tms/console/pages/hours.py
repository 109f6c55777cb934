"""The last hour as charts, for pages that show a part of it."""

from tms.console.charts import BYTES, BYTES_PER_S, COUNT, PER_S, Chart, Line, Span, Unit, chart
from tms.model.history import DISK_USED, LAG, History

_SERVICE: tuple[tuple[str, Unit, tuple[tuple[str, str], ...]], ...] = (
    ("Messages published", PER_S, (("Messages", "messages_in_s"),)),
    ("Bytes", BYTES_PER_S, (("Published", "bytes_in_s"), ("To clients", "bytes_out_s"))),
    ("Lag of all groups", COUNT, (("Messages", LAG),)),
    ("Requests", PER_S, (("All", "requests_s"), ("Failed (5xx)", "errors_s"))),
    ("Disk used", BYTES, (("Used", DISK_USED),)),
)
_TOPIC = _SERVICE[:2]
_GROUP = (("Lag", COUNT, (("Messages", LAG),)),)


def charts_of_service(history: History) -> list[Chart]:
    """The charts of a service. Its disk is left out if nothing is known of it, as on HBase."""
    charts = _charts(history, _SERVICE)
    return [one for one in charts if one.known or one.title != "Disk used"]


def charts_of_topic(history: History) -> list[Chart]:
    """The charts of a topic."""
    return _charts(history, _TOPIC)


def charts_of_group(history: History) -> list[Chart]:
    """The charts of a group in a topic."""
    return _charts(history, _GROUP)


def _charts(
    history: History, wanted: tuple[tuple[str, Unit, tuple[tuple[str, str], ...]], ...]
) -> list[Chart]:
    span = Span(history.end_ms, history.step_ms)
    return [
        chart(title, [Line(name, history.series.get(key, [])) for name, key in lines], span, unit)
        for title, unit, lines in wanted
    ]
