"""The `tms` command and the HTTP request that do what an action of a page does."""

import shlex
from typing import NamedTuple

from tms.server.asking import AskedOperation

TOKEN_VARIABLE = "$TMS_TOKEN"


class SameAs(NamedTuple):
    """An action, written for a shell: the `tms` command, and curl."""

    command: str
    curl: str


def same_as(url: str, command: list[str], question: AskedOperation, has_token: bool) -> SameAs:
    """The command with these arguments behind `tms`, and the request of the question to the service
    at `url`. `has_token`: the service asks for one."""
    operation = question.operation
    curl = ["curl", "-X", operation.method, shlex.quote(url + question.target)]
    if has_token:
        curl += ["-H", f'"Authorization: Bearer {TOKEN_VARIABLE}"']
    if question.payload:
        curl += ["-H", shlex.quote(f"Content-Type: {question.content_type}")]
    for name, value in question.headers.items():
        curl += ["-H", shlex.quote(f"{name.decode()}: {value.decode('latin-1')}")]
    if question.payload:
        curl += ["--data-binary", shlex.quote(question.payload.decode())]
    return SameAs(shlex.join(["tms", *command]), " ".join(curl))
