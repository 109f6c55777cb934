"""Arguments of `Bus.consumer` from plain options, for tests that put them together."""

from typing import Any

import tms

SETTINGS = (
    "delivery",
    "session_s",
    "on_assigned",
    "on_revoked",
    "dead_letter",
    "deliveries_max",
    "backoff_first_s",
    "backoff_max_s",
)


def grouped(**options: Any) -> dict[str, Any]:
    """The options, with the settings of their group in a `tms.Group`."""
    settings = {name: options.pop(name) for name in SETTINGS if name in options}
    if settings or "group" in options:
        options["group"] = tms.Group(options.pop("group", ""), **settings)
    return options
