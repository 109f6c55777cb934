"""The runbooks of docs/runbooks.md, which come with the service: faults link to their sections.

Only what that page uses of Markdown is understood: headings, paragraphs, numbered lists, tables,
code, links. Links to other pages of the documentation are shown as their text and file.
"""

import re
from collections.abc import Iterator
from functools import cache
from html import escape
from importlib.resources import files
from typing import NamedTuple

from tms.console.visit import ROOT, PageAnswer, PageRoute, Visit, WebPage

_CODE = re.compile(r"`([^`]+)`")
_LINK = re.compile(r"\[([^\]]+)\]\(([^)]+)\)")
_ITEM = re.compile(r"^\d+\. ", re.MULTILINE)


class Runbook(NamedTuple):
    """A section: its name, as alerts have it, and its text as HTML."""

    name: str
    html: str


async def show_runbooks(_: Visit) -> PageAnswer:
    """All runbooks."""
    return WebPage("runbooks.html", {"runbooks": runbooks()})


@cache
def runbooks() -> list[Runbook]:
    """The sections of the page, in its order."""
    text = files("tms").joinpath("console", "runbooks.md").read_text("utf-8")
    sections = text.split("\n## ")[1:]
    return [Runbook(name, "".join(_blocks(body))) for name, _, body in _parted(sections)]


def _parted(sections: list[str]) -> Iterator[tuple[str, str, str]]:
    for section in sections:
        yield section.partition("\n")


def _blocks(body: str) -> Iterator[str]:
    for block in re.split(r"\n\s*\n", body.strip()):
        if block.startswith("|"):
            yield _table(block.splitlines())
        elif _ITEM.match(block):
            items = [_inline(one) for one in _ITEM.split(block)[1:]]
            yield f"<ol>{''.join(f'<li>{item}</li>' for item in items)}</ol>"
        else:
            yield f"<p>{_inline(block)}</p>"


def _table(lines: list[str]) -> str:
    head, _, *rows = ([_inline(cell) for cell in line.strip("| ").split(" | ")] for line in lines)
    titles = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>"


def _inline(text: str) -> str:
    """Text in one line, with its code and links."""
    line = escape(" ".join(text.split()))
    return _LINK.sub(_link, _CODE.sub(r"<code>\1</code>", line))


def _link(found: re.Match[str]) -> str:
    text, target = found.groups()
    if target.startswith("#"):
        return f'<a href="{target}">{text}</a>'
    return f"{text} (<code>docs/{target.partition('#')[0].removeprefix('../')}</code>)"


ROUTES = (PageRoute("GET", f"{ROOT}/runbooks", show_runbooks),)
