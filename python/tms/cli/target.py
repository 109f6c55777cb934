"""The target of a command: a service or a data directory.

    --url, --data, --context  >  TMS_URL, TMS_DATA, TMS_CONTEXT  >  the selected context
                              >  the service on this machine

* The token and the files of a context go to its own URL only, or to one that is typed beside
  `--context`. Of TMS_URL and TMS_CONTEXT, TMS_URL wins, and the context is left aside.
* A typed option wins over a setting of the context. A typed context wins over the environment, and
  the environment over any other context.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from tms.cli.contexts import Context, Contexts  # loads msgspec

URL_DEFAULT = "http://127.0.0.1:7070"


@dataclass(frozen=True, slots=True)
class Target:
    """A service or a data directory; exactly one of `url` and `data` is there."""

    url: str | None = None
    data: Path | None = None
    named: bool = True  # typed or in the environment, not selected and not the default
    context: "Context | None" = None  # how to show oneself to the service
    kept_token: str | None = None  # of the context
    typed: bool = False  # the context was

    def token(self, environ: Mapping[str, str]) -> str | None:
        """The token of the context; None: that of the environment, if any."""
        from tms.cli.contexts import token_in

        context = self._context(environ, "TMS_TOKEN", "TMS_TOKEN_FILE")
        return None if context is None else token_in(context, self.kept_token)

    def ca(self, environ: Mapping[str, str]) -> str | None:
        """The CA of the context; None: what the environment says, if anything."""
        context = self._context(environ, "TMS_CA")
        return (context.ca or None) if context is not None else None

    def own_certificate(self, environ: Mapping[str, str]) -> tuple[str, str] | None:
        """Certificate and key of the context; None: what the environment says, if anything."""
        context = self._context(environ, "TMS_CERT", "TMS_KEY")
        return (context.cert, context.key) if context is not None and context.cert else None

    def _context(self, environ: Mapping[str, str], *variables: str) -> "Context | None":
        """The context, unless one of these variables wins over it."""
        if not self.typed and any(environ.get(name) for name in variables):
            return None
        return self.context


def target_of(
    url: str | None, data: Path | None, context: str | None, environ: Mapping[str, str]
) -> Target:
    """The target of these options and this environment. Raises `click.UsageError`,
    `ConfigError`."""
    from tms.cli.contexts import Contexts

    contexts = Contexts(environ)
    if data is not None and (url is not None or context is not None):
        raise _two("--data", "--url" if url is not None else "--context")
    if context is not None:
        return _in_context(contexts, context, url=url, typed=True)
    if url is not None or data is not None:
        return Target(url, data)
    url, named = environ.get("TMS_URL") or None, environ.get("TMS_CONTEXT")
    if directory := environ.get("TMS_DATA"):
        if url or named:
            raise _two("TMS_DATA", "TMS_URL" if url else "TMS_CONTEXT")
        return Target(data=Path(directory))
    if url:
        return Target(url)
    if named:
        return _in_context(contexts, named)
    if selected := contexts.selected():
        return _in_context(contexts, selected, named=False)
    return Target(URL_DEFAULT, named=False)


def _in_context(
    contexts: "Contexts",
    name: str,
    *,
    url: str | None = None,
    named: bool = True,
    typed: bool = False,
) -> Target:
    context, kept = contexts.load(name)
    return Target(url or context.url, None, named, context, kept, typed)


def _two(one: str, other: str) -> click.UsageError:
    return click.UsageError(
        "Both a data directory and a service are given; choose one of --data and --url "
        f"({one} and {other} are set)."
    )
