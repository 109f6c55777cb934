"""Long lists: a page of them at a time, however long they are.

The service searches and sorts, so that a page costs about what it shows. A list in the order of a
number has numbers that may be a minute old.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tms.console.visit import Visit
from tms.errors import Overloaded

SHOWN = 100
SHOWN_MAX = 500
BY_NAME = "name"


class ListPage(NamedTuple):
    """A page of a list. `next`: the address of the next page, empty on the last one; `first`: that
    of the first page, empty on it; `order`: `name`, or the number by which it is sorted, largest
    first; `search`: the text that all names contain; `is_sorting`: it is sorted by name until the
    numbers of the whole list are there; `namespaces`: those that the visitor may see."""

    items: Sequence[Any]
    next: str
    first: str
    order: str = BY_NAME
    search: str = ""
    is_sorting: bool = False
    namespaces: Sequence[str] = ()


async def page_of(
    visit: Visit, operation: str, namespace: str, place: Callable[[Any], str]
) -> ListPage:
    """The page that a visit asks for (`after`, `limit`, `search`, `order`) of a list of a
    namespace. `place`: of an entry, behind which the next page begins."""
    limit = visit.number("limit", SHOWN, 1, SHOWN_MAX)
    after = visit.asked("after") or None
    search = visit.asked("search").strip()
    order = visit.asked("order", BY_NAME)
    asked = {"namespace": namespace, "limit": limit + 1, "search": search or None}
    is_sorting = False
    try:
        ranked = None if order == BY_NAME else order
        found = await visit.ask(operation, **asked, after=after, order=ranked)
    except Overloaded:
        if order == BY_NAME:
            raise
        is_sorting = True
        found = await visit.ask(operation, **asked)
    namespaces, _ = await visit.tried("glance.namespaces")
    items = found[:limit]
    goes_on = len(found) > limit and not is_sorting
    return ListPage(
        items,
        visit.address(after=place(items[-1])) if goes_on else "",
        visit.address(after=None) if after else "",
        order,
        search,
        is_sorting,
        namespaces or (),
    )
