"""The options of the data source by name: what both halves do before they look at values.

* Names are compared without case: Spark writes them in lower case. Errors use the name as it is
  documented.
* Nothing is ignored, but what a half says that it does not mind.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from tms.errors import Invalid


@dataclass(frozen=True, slots=True)
class Names:
    """The options for `what`. `elsewhere` says of others, in lower case, what to do instead;
    `passed_over` are those that Spark hands on and that mean nothing here."""

    what: str
    names: Sequence[str]
    elsewhere: Mapping[str, str]
    passed_over: frozenset[str] = frozenset()

    def recognized(self, options: Mapping[str, str]) -> dict[str, str]:
        """The options by their documented names. Raises `Invalid`."""
        documented = {name.lower(): name for name in self.names}
        got = {}
        for name, value in options.items():
            if name.lower() in self.passed_over:
                continue
            known = documented.get(name.lower())
            if known is None:
                raise Invalid(self._unknown(name), field=name)
            got[known] = str(value).strip()
        return got

    def _unknown(self, name: str) -> str:
        hint = self.elsewhere.get(name.lower())
        if hint is None and name.lower().startswith("kafka."):
            hint = "Options of Kafka itself mean nothing here; leave it out."
        if hint is None:
            documented = {one.lower(): one for one in self.names}
            near = get_close_matches(name.lower(), documented, n=1, cutoff=0.5)
            meant = f"Did you mean {documented[near[0]]!r}? " if near else ""
            hint = f"{meant}It has {', '.join(self.names)}."
        return f"The data source tms has no option {name!r} for {self.what}. {hint}"


def token_of(got: Mapping[str, str]) -> str:
    """The option tms.token. Raises `Invalid`."""
    token = got.get("tms.token", "")
    if not re.fullmatch(r"[!-~]*", token):
        raise Invalid("The option tms.token is not printable ASCII.", field="tms.token")
    return token
