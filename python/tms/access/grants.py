"""The grants that cover a resource.

    topic:NAMESPACE:TOPIC ─▶ exact, prefixes ─▶ namespace:NAMESPACE ─▶ *
    group, queue          ─▶ exact, prefixes ─▶ its topic, as above

Invariants

* A request that no grant covers is refused. There are no denials, so overlapping grants add up.
* A look-up costs as much as there are different lengths of prefixes, not grants.
"""

from collections.abc import Iterable, Iterator

from tms.model.access import Access, Grant


class Grants:
    """The grants of one principal, with those of everybody."""

    def __init__(self, grants: Iterable[Grant]) -> None:
        self._exact: dict[str, dict[Access, Grant]] = {}
        self._prefixes: dict[str, dict[Access, Grant]] = {}
        self.all = tuple(grants)
        for grant in self.all:
            if grant.pattern.endswith("*"):
                verbs = self._prefixes.setdefault(grant.pattern[:-1], {})
            else:
                verbs = self._exact.setdefault(grant.pattern, {})
            verbs.setdefault(grant.verb, grant)
        self._lengths = sorted({len(prefix) for prefix in self._prefixes}, reverse=True)

    def find(self, verb: Access, resource: str) -> Grant | None:
        """A grant that allows this; None if there is none."""
        for covering in _covering(resource):
            for verbs in self._at(covering):
                grant = verbs.get(verb) or verbs.get(Access.ALL)
                if grant is None and verb is Access.OBSERVE:
                    grant = next(iter(verbs.values()))
                if grant is not None:
                    return grant
        return None

    def reach_into(self, within: str) -> bool:
        """True if any grant could match a resource with this prefix. Grants on what contains it do
        not count."""
        return any(pattern.startswith(within) for pattern in self._exact) or any(
            prefix.startswith(within) or within.startswith(prefix) for prefix in self._prefixes
        )

    def _at(self, resource: str) -> Iterator[dict[Access, Grant]]:
        if resource in self._exact:
            yield self._exact[resource]
        for length in self._lengths:
            verbs = self._prefixes.get(resource[:length]) if length <= len(resource) else None
            if verbs is not None:
                yield verbs


def _covering(resource: str) -> Iterator[str]:
    """The resource, and what it is a part of."""
    yield resource
    kind, _, rest = resource.partition(":")
    if kind in ("group", "queue"):
        rest = rest.partition("/")[0]
        yield f"topic:{rest}"
    if kind in ("group", "queue", "topic"):
        yield f"namespace:{rest.partition(':')[0]}"
