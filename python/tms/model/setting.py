"""Settings of a service, as it was started."""

from dataclasses import dataclass

HIDDEN = "(hidden)"


@dataclass(frozen=True, slots=True)
class ConfiguredSetting:
    """A setting: its key, its value as text, and the flag, variable or line that gave it, empty for
    the default. Secrets in the value are `HIDDEN`."""

    key: str
    value: str
    source: str = ""
