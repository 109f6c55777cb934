"""`tms console`: the pages of a service, in a browser.

With a token or certificate, the address has a one-time link: it signs in within a minute, once, and
is worth nothing afterwards, wherever it was kept.
"""

import webbrowser
from typing import Annotated

import click

from tms.api.routes import CONSOLE
from tms.cli.output import Format
from tms.cli.parameters import session_command
from tms.cli.session import Session
from tms.errors import Unauthenticated


@session_command("console")
def command(
    session: Session,
    only_print: Annotated[bool, "--print", "Print the address; open no browser."] = False,
) -> None:
    """Open the console of the service in a browser, signed in with the token of this command.

    \b
      tms console --context prod
      tms console --print      # for a browser on another machine
    """
    address = _address(session)
    if session.format is not Format.TABLE:
        session.show_one({"address": address}, {})
    elif only_print or not webbrowser.open(address):
        session.printed_document = True
        click.echo(address)
    else:
        session.say("The console is open in your browser.")


def _address(session: Session) -> str:
    """The address of the console, with a one-time link if the service knows the caller."""
    url = session.urls(session.service()).partition(",")[0].rstrip("/")
    with session.bus() as bus:
        access = bus.admin.access
        try:
            principal = access.whoami().principal
        except Unauthenticated:
            if session.token():
                raise
            principal = ""  # the console asks for a token
        if not principal:
            return f"{url}{CONSOLE}/"
        return f"{url}{CONSOLE}/enter/{access.create_session(one_time=True).token}"
