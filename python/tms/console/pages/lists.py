"""Long lists: a page of them at a time, however long they are."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tms.console.visit import Visit

SHOWN = 100
SHOWN_MAX = 500


class ListPage(NamedTuple):
    """A page of a list. `next`: the address of the next page, empty on the last one; `first`: that
    of the first page, empty on it."""

    items: Sequence[Any]
    next: str
    first: str


async def page_of(
    visit: Visit, operation: str, namespace: str, place: Callable[[Any], str]
) -> ListPage:
    """The page that a visit asks for (`after`, `limit`, `search`) of a list of a namespace, in its
    own order. `place`: of an entry, behind which the next page begins."""
    limit = visit.number("limit", SHOWN, 1, SHOWN_MAX)
    after = visit.asked("after") or None
    asked = {"namespace": namespace, "after": after, "limit": limit + 1}
    found = await visit.ask(operation, **asked)
    items = found[:limit]
    next_page = visit.address(after=place(items[-1])) if len(found) > limit else ""
    return ListPage(items, next_page, visit.address(after=None) if after else "")
