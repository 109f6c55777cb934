"""The sources of the settings: a TOML file, the environment and flags, in rising precedence.

    data = "/var/lib/tms"           TMS__DATA            --data       or
    store = "hbase://host:9090"     TMS__STORE           --store
    [server]
    port = 7070                     TMS__SERVER__PORT    --port

* All faults are reported at once, each with its key, the reason and its source.
* Any key may come from a file, as secrets of containers do: TMS__SECTION__KEY_FILE names the file.
  No error shows its contents.
* An unknown key is a fault, also in the environment below `TMS__`, and names the nearest one.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from tms.errors import ConfigError
from tms.model.setting import HIDDEN, ConfiguredSetting
from tms.serve.config import Settings

ENV_PREFIX = "TMS__"
_SEPARATOR, _FILE = "__", "_FILE"
_NOT_GIVEN = "not given"
_IN_URL = re.compile(r"(//).*@")
_BY_FILE = "file of the environment variable "
_SECRET_CHARS_MAX = 65_536


def load(file: Path | None, flags: Mapping[str, object]) -> Settings:
    """The settings from a file, the environment and flags (`{"server.port": 7070}`).

    Raises `ConfigError` that lists every fault.
    """
    return load_told(file, flags)[0]


def load_told(
    file: Path | None, flags: Mapping[str, object]
) -> tuple[Settings, list[ConfiguredSetting]]:
    """As `load`; with the settings as a service shows them, each with its source. Values that come
    from files named by variables, and names and passwords in URLs, are hidden."""
    text, values = _read(file)
    sources = _Sources(file, text, values, flags)
    merged = _merged(_merged(values, _nested(sources.environment())), _nested(flags))
    try:
        settings = Settings(**merged)
    except ValidationError as exc:
        faults = [_fault(error, sources) for error in exc.errors()]
        count = "a fault" if len(faults) == 1 else f"{len(faults)} faults"
        raise ConfigError(f"The configuration has {count}:\n  " + "\n  ".join(faults)) from exc
    return settings, [*_told(settings, sources)]


def _told(
    section: BaseModel, sources: "_Sources", within: tuple[str, ...] = ()
) -> Iterator[ConfiguredSetting]:
    for name, value in section:
        keys = (*within, name)
        if isinstance(value, BaseModel):
            yield from _told(value, sources, keys)
            continue
        source = sources.source_of(keys)
        text = HIDDEN if source.startswith(_BY_FILE) else _text(value)
        yield ConfiguredSetting(".".join(keys), text, "" if source == _NOT_GIVEN else source)


def _text(value: object) -> str:
    """A value as text, without a name and password in a URL."""
    text = "" if value is None else str(value)
    return _IN_URL.sub(rf"\1{HIDDEN}@", text)


def flag_of(key: str) -> str:
    """The flag that says this key: its last part; with the section before it where another section
    has the same, other than `server` and `kafka`, for `tls`, as clients have --cert and --key, and
    for `jwt`, `kafka` and `console`, whose parts say little alone."""
    section, _, last = key.rpartition(".")
    others = [other for other in _known_keys() if not other.startswith("kafka.")]
    alone = sum(other.rpartition(".")[2] == last for other in others) == 1
    short = section == "server" or (alone and section not in ("tls", "jwt", "kafka", "console"))
    name = last if short else f"{section}-{last}"
    return f"--{name.replace('_', '-')}"


class _Sources:
    """The source of each value."""

    def __init__(
        self, file: Path | None, text: str, values: dict[str, Any], flags: Mapping[str, object]
    ) -> None:
        self._file = file
        self._text = text
        self._values = values
        self._flags = flags
        self._variables = {name.upper(): name for name in sorted(os.environ)}

    def environment(self) -> dict[str, str]:
        """The values of variables below `TMS__`, by key; a variable that ends with `_FILE` names a
        file with the value. Raises `ConfigError`."""
        said: dict[str, str] = {}
        for upper, name in self._variables.items():
            if not upper.startswith(ENV_PREFIX):
                continue
            key = upper.removeprefix(ENV_PREFIX).lower().replace(_SEPARATOR, ".")
            in_file = self._key_in_file(key)
            if (in_file or key) in said:
                raise ConfigError(
                    f"{in_file or key} is said by two environment variables, itself and by a file: "
                    f"unset {name} or the other one."
                )
            said[in_file or key] = os.environ[name] if in_file is None else _in_file(name)
        return said

    @staticmethod
    def _key_in_file(key: str) -> str | None:
        """The key whose value a variable names the file of; None for any other variable."""
        known, without = set(_known_keys()), key.removesuffix(_FILE.lower())
        return without if without != key and key not in known and without in known else None

    def source_of(self, keys: tuple[str, ...]) -> str:
        """The flag, variable or line that gave these keys; of several the strongest."""
        if ".".join(keys) in self._flags:
            return f"flag {flag_of('.'.join(keys))}"
        wanted = ENV_PREFIX + _SEPARATOR.join(keys).upper()
        for variable, name in self._variables.items():
            if variable == wanted or variable.startswith(wanted + _SEPARATOR):
                return f"environment variable {name}"
            if variable == wanted + _FILE:
                return f"{_BY_FILE}{name}, {os.environ[name]}"
        if self._file is not None and _has(self._values, keys):
            return f"{self._file}, line {self._line(keys)}"
        return _NOT_GIVEN

    def _line(self, keys: tuple[str, ...]) -> int:
        table: tuple[str, ...] = ()
        for number, line in enumerate(self._text.splitlines(), 1):
            if header := re.match(r"\s*\[\s*([\w.-]+)\s*\]", line):
                table = tuple(header[1].split("."))
                if table == keys:
                    return number
            elif (key := re.match(r"\s*([\w.-]+)\s*=", line)) and (
                table + tuple(key[1].split("."))
            ) in (keys, keys[:-1]):
                return number
        return 1


def _in_file(variable: str) -> str:
    """The contents of the file that a variable names, stripped of white space."""
    path = os.environ[variable]
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(_SECRET_CHARS_MAX + 1)
    except (OSError, UnicodeDecodeError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else "it is not UTF-8"
        raise ConfigError(
            f"The file {path!r} that the environment variable {variable} names cannot be read: "
            f"{why}."
        ) from exc
    if len(text) > _SECRET_CHARS_MAX:
        raise ConfigError(
            f"The file {path!r} that the environment variable {variable} names has more than "
            f"{_SECRET_CHARS_MAX} characters: it is no value of a setting."
        )
    return text.strip()


def _read(file: Path | None) -> tuple[str, dict[str, Any]]:
    if file is None:
        return "", {}
    try:
        text = file.read_text("utf-8")
        return text, tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        raise ConfigError(f"The configuration file {file} is not TOML: {exc}.") from exc
    except RecursionError as exc:
        raise ConfigError(f"The configuration file {file} is nested too deeply.") from exc
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"The configuration file {file} cannot be read: {exc}.") from exc


def _fault(error: Any, sources: _Sources) -> str:
    keys = tuple(str(part) for part in error["loc"])
    if not keys:  # of all settings together: the message names them
        return str(error["msg"]).removeprefix("Value error, ")
    source = sources.source_of(keys)
    if error["type"] == "extra_forbidden":
        return _unknown(keys, source)
    hidden = isinstance(error["input"], dict | BaseModel) or source.startswith(_BY_FILE)
    got = "" if hidden else f", got {error['input']!r:.80}"
    return f"{'.'.join(keys)}: {error['msg'].removeprefix('Value error, ')}{got} ({source})"


def _unknown(keys: tuple[str, ...], source: str) -> str:
    """Says which known key is nearest: in the same section, else anywhere."""
    known = list(_known_keys())
    name = ".".join(keys)
    near = difflib.get_close_matches(name, known, 1, 0.7)
    if not near:
        last = {key.rpartition(".")[2]: key for key in known}
        near = [last[key] for key in difflib.get_close_matches(keys[-1], last, 1, 0.6)]
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"{name}: there is no such key{hint} ({source})"


def _known_keys() -> Iterator[str]:
    for name, field in Settings.model_fields.items():
        yield name
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from (f"{name}.{key}" for key in field.annotation.model_fields)


def _nested(flags: Mapping[str, object]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for name, value in flags.items():
        *sections, key = name.split(".")
        inner = nested
        for section in sections:
            if not isinstance(inner.get(section), dict):
                inner[section] = {}
            inner = inner[section]
        inner[key] = value
    return nested


def _merged(weak: Mapping[str, Any], strong: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(weak)
    for name, value in strong.items():
        below = merged.get(name)
        if isinstance(below, dict) and isinstance(value, dict):
            merged[name] = _merged(below, value)
        else:
            merged[name] = value
    return merged


def _has(values: Mapping[str, Any], keys: tuple[str, ...]) -> bool:
    inner: Any = values
    for key in keys:
        if not isinstance(inner, dict) or key not in inner:
            return False
        inner = inner[key]
    return True
