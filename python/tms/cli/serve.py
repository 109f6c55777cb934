"""`tms serve`: runs the service in this process. Every setting of the configuration is a flag.

The flags are made from `tms.serve.config.Settings`, so that none can be forgotten; `flag_of`
names them.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import click

from tms.cli.session import Session, Shared
from tms.runtime.extras import needed
from tms.serve.config import Settings
from tms.serve.config_sources import flag_of, load_told


class _Serve(Shared):
    """The command with a flag for each setting."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        flags = [_option(*setting) for setting in settings()]
        return [*self.params, *flags, *super().get_params(ctx)[len(self.params) :]]


@click.command("serve", cls=_Serve)
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    help="TOML file; environment variables TMS__SECTION__KEY and flags win over it.",
)
@click.pass_obj
def command(session: Session, /, config: Path | None, **given: Any) -> None:
    """Run the service until SIGTERM or ctrl-C.

    \b
      tms serve --data /var/lib/tms
      tms serve --data data --port 7071 --log-level debug
    """
    if session.url is not None or session.context is not None:
        raise click.UsageError("serve takes --host and --port instead of --url and --context.")
    if session.ca or session.cert or session.key:
        raise click.UsageError(
            "serve takes --tls-cert, --tls-key and --tls-ca instead of --cert, --key and --ca."
        )
    with needed("`tms serve`", "server"):
        from tms.serve.main import serve

    keys = {_parameter(flag): key for key, flag, _, _ in settings()}
    flags: dict[str, object] = {
        keys[name]: value for name, value in given.items() if value is not None
    }
    data = session.data or os.environ.get("TMS_DATA")
    if data is not None:
        flags["data"] = str(data)
    serve(*load_told(config, flags))


def settings() -> list[tuple[str, str, Any, Any]]:
    """Key, flag, type and default of every setting but `data`, which all commands share."""
    return [(key, flag_of(key), kind, default) for key, kind, default in _keys(Settings, "")]


def _keys(section: Any, prefix: str) -> Iterator[tuple[str, Any, Any]]:
    for name, field in section.model_fields.items():
        kind = field.annotation
        if hasattr(kind, "model_fields"):
            yield from _keys(kind, f"{prefix}{name}.")
        elif name != "data":
            yield prefix + name, kind, field.default


def _parameter(flag: str) -> str:
    return "setting_" + flag.removeprefix("--").replace("-", "_")


def _option(key: str, flag: str, kind: Any, default: Any) -> click.Option:
    help_text = f"{key} [{default}]"
    if kind is bool:
        return click.Option([flag, _parameter(flag)], is_flag=True, default=None, help=help_text)
    choices = get_args(kind) if get_origin(kind) is Literal else ()
    if default is None:
        kind = get_args(kind)[0]  # of `int | None`
    metavar = "|".join(filter(None, choices)) or getattr(kind, "__name__", "value").upper()
    return click.Option([flag, _parameter(flag)], metavar=metavar, help=help_text)
