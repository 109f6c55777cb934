"""The options of the data source `tms`: names, syntax, and errors.

* Names are compared without case: Spark writes them in lower case. Errors use the name as it is
  documented.
* Nothing is ignored but what Spark itself passes along: an option that is not known, or means
  nothing in this kind of query, is an error that says what to do.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from math import inf
from typing import Any, NamedTuple

from tms.errors import Invalid, TMSError
from tms.model.quantity import milliseconds
from tms.model.topic import TopicName
from tms.runtime.tls import ClientTls

STREAMS, BATCHES = "streams", "batch queries"
FOREVER = "forever"
TOKEN_CHARS_MAX = 8_192
_SHOWN_CHARS = 120


class Option(NamedTuple):
    """`read` makes the value of name and text, or raises `Invalid`; `default` is the value of an
    option that is not given. `only` is the kind of query in which it has a meaning, "" for both."""

    name: str
    read: Callable[[str, str], Any]
    default: Any = None
    only: str = ""


class OptionTable:
    """The options for `what`. `elsewhere` says of others, in lower case, what to do instead;
    `passed_over` are those that Spark hands on and that mean nothing here."""

    def __init__(
        self,
        what: str,
        options: Iterable[Option],
        elsewhere: Mapping[str, str],
        passed_over: frozenset[str] = frozenset(),
    ) -> None:
        self._what = what
        self._options = {option.name.lower(): option for option in options}
        self._elsewhere = elsewhere
        self._passed_over = passed_over
        self.names = [option.name for option in self._options.values()]

    def read(self, given: Mapping[str, str], query: str = "") -> dict[str, Any]:
        """The values of all options, by their documented names, for this kind of query. Raises
        `Invalid`, whose detail `field` is the option."""
        values = {option.name: option.default for option in self._options.values()}
        for name, text in given.items():
            if name.lower() in self._passed_over:
                continue
            option = self._options.get(name.lower())
            if option is None:
                raise Invalid(self._unknown(name), field=name)
            if query and option.only not in ("", query):
                raise Invalid(
                    f"The option {option.name} has a meaning in {option.only} only; leave it out "
                    f"of {query}.",
                    field=option.name,
                )
            values[option.name] = option.read(option.name, str(text).strip())
        return values

    def _unknown(self, name: str) -> str:
        hint = self._elsewhere.get(name.lower())
        if hint is None and name.lower().startswith("kafka."):
            hint = "Options of Kafka itself mean nothing here; leave it out."
        if hint is None:
            near = get_close_matches(name.lower(), self._options, n=1, cutoff=0.5)
            meant = f"Did you mean {self._options[near[0]].name!r}? " if near else ""
            hint = f"{meant}It has {', '.join(self.names)}."
        return f"The data source tms has no option {name!r} for {self._what}. {hint}"


def refuse(option: str, value: str, meant: str) -> Invalid:
    """The error of an option with a wrong value."""
    shown = value if len(value) <= _SHOWN_CHARS else value[:_SHOWN_CHARS] + "…"
    return Invalid(f"The option {option} takes {meant}; got {shown!r}.", field=option)


def choice(values: Mapping[str, Any]) -> Callable[[str, str], Any]:
    """A reader of words, of which each means a value."""

    def read(option: str, text: str) -> Any:
        if text.lower() not in values:
            raise refuse(option, text, " or ".join(f"`{word}`" for word in values))
        return values[text.lower()]

    return read


flag = choice({"true": True, "false": False})


def whole(least: int, most: int, meant: str) -> Callable[[str, str], int]:
    """A reader of whole numbers."""

    def read(option: str, text: str) -> int:
        if not re.fullmatch(r"\d{1,19}", text, re.ASCII) or not least <= int(text) <= most:
            raise refuse(option, text, meant)
        return int(text)

    return read


def duration_ms(option: str, text: str) -> int:
    """A duration in ms, from `30s`, `15 min`, `1h`; a number alone is in ms."""
    return int(milliseconds(option, text.lower().replace(" ", "").replace("min", "m")))


def outage_s(option: str, text: str) -> float:
    """The longest outage of a service, in s, from `30s`, `1h`, or infinite: `forever`."""
    if text.strip().lower() == FOREVER:
        return inf
    try:
        return duration_ms(option, text) / 1_000
    except Invalid as exc:
        raise refuse(option, text, f"a duration such as `10m`, or `{FOREVER}`") from exc


def token(option: str, text: str) -> str:
    """A token for the header `Authorization`."""
    if not re.fullmatch(r"[!-~]*", text):
        raise Invalid(f"The option {option} is not printable ASCII.", field=option)
    return text


def _token_in(option: str, text: str) -> str:
    """The token in a file of the machine where the query is made."""
    try:
        with open(text, encoding="utf-8") as file:
            found = file.read(TOKEN_CHARS_MAX + 1).strip()
    except OSError as exc:
        raise Invalid(
            f"The option {option} names {text}, which cannot be read: {exc.strerror}.", field=option
        ) from exc
    except ValueError as exc:  # not UTF-8, or a path with NUL
        raise Invalid(f"The option {option} names {text}, which is no text.", field=option) from exc
    if not 0 < len(found) <= TOKEN_CHARS_MAX:
        raise Invalid(f"The option {option} names {text}, which holds no token.", field=option)
    return token(option, found)


TOKEN_OPTIONS = [Option("tms.token", token, ""), Option("tms.token.file", _token_in, "")]


def token_of(values: Mapping[str, Any]) -> str:
    """The token in `TOKEN_OPTIONS`; empty: no token. Raises `Invalid`."""
    said, in_file = (str(values[option.name]) for option in TOKEN_OPTIONS)
    if said and in_file:
        raise Invalid(
            "The options tms.token and tms.token.file are both given; leave one of them out.",
            field="tms.token.file",
        )
    return said or in_file


def _file(option: str, text: str) -> str:
    """The path of a file that every machine of Spark has."""
    return text


TLS_OPTIONS = [
    Option("tms.tls.ca", _file),
    Option("tms.tls.cert", _file),
    Option("tms.tls.key", _file),
]


def tls_of(values: Mapping[str, Any]) -> ClientTls:
    """The TLS settings in `TLS_OPTIONS`, or else in the environment of the process that makes the
    query. Raises `Invalid`."""
    ca, cert, key = (values[option.name] for option in TLS_OPTIONS)
    try:
        return ClientTls.of(ca, (cert or "", key) if key else cert)
    except TMSError as error:
        raise Invalid(f"The option tms.tls.key: {error.message}", field="tms.tls.key") from error


def service_url(option: str, text: str) -> str:
    """The URL of a service."""
    if not text.startswith(("http://", "https://")):
        raise refuse(
            option,
            text,
            "the URL of a service, http://HOST:PORT or https://HOST:PORT. A data directory or an "
            "HBase belongs to one process: start `tms serve` on it. HBase is also read with "
            "source=hbase and tms.store",
        )
    return text


def topic_name(field: str, name: str, *, place: str = "option", written: bool = False) -> str:
    """The topic that an option or a column names. Raises `Invalid`, also for one that cannot be
    written to if it is to be."""
    try:
        topic = TopicName.parse(name)
        if written:
            topic.require_writable()
    except TMSError as error:
        raise Invalid(f"The {place} {field}: {error.message}", field=field) from error
    return str(topic)
