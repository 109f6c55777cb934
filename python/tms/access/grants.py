"""The grants that cover a resource.

    topic:NAMESPACE:TOPIC ─▶ exact, prefixes ─▶ namespace:NAMESPACE ─▶ *
    group, queue          ─▶ exact, prefixes ─▶ its topic, as above
    some-topic            ─▶ any grant on a topic of the namespace
    some-group            ─▶ any grant on this group of a topic of the namespace

Invariants

* A request that no grant covers is refused. There are no denials, so overlapping grants add up.
* A look-up costs as much as there are different lengths of prefixes, not grants; one of
  `some_topic` or `some_group` as much as there are grants.
"""

from collections.abc import Iterable, Iterator

from tms.model.access import Access, Grant

_SOME_TOPIC = "some-topic"  # kinds that no pattern names
_SOME_GROUP = "some-group"


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
        if resource.startswith((_SOME_TOPIC, _SOME_GROUP)):
            return self._find_some(verb, resource)
        for covering in _covering(resource):
            for verbs in self._at(covering):
                grant = verbs.get(verb) or verbs.get(Access.ALL)
                if grant is None and verb is Access.OBSERVE:
                    grant = next(iter(verbs.values()))
                if grant is not None:
                    return grant
        return None

    def _find_some(self, verb: Access, resource: str) -> Grant | None:
        kind, namespace, *rest = resource.split(":", 2)
        group = rest[0] if kind == _SOME_GROUP else None
        for grant in self.all:
            is_verb = grant.verb in (verb, Access.ALL) or verb is Access.OBSERVE
            if is_verb and _covers_some(grant.pattern, namespace, group):
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


def some_topic(namespace: str) -> str:
    """The resource of a request that concerns topics of a namespace and names none."""
    return f"{_SOME_TOPIC}:{namespace}"


def some_group(namespace: str, group: str) -> str:
    """The resource of a request that concerns a group and names none of its topics."""
    return f"{_SOME_GROUP}:{namespace}:{group}"


def example_of(resource: str) -> str:
    """A pattern for a grant that covers a resource."""
    kind, _, rest = resource.partition(":")
    if kind == _SOME_TOPIC:
        return f"topic:{rest}:TOPIC"
    return f"group:{rest.replace(':', ':TOPIC/', 1)}" if kind == _SOME_GROUP else resource


def _covers_some(pattern: str, namespace: str, group: str | None) -> bool:
    """True if a pattern covers a topic of a namespace, or this group of one."""
    kind, _, rest = pattern.partition(":")
    if kind == "*":
        return True
    if kind == "namespace":
        return _matches(rest, namespace)
    within, _, name = rest.partition(":")
    if within != namespace:
        return False
    if kind == "topic":
        return True
    if kind != "group" or group is None:
        return False
    _, slash, of_group = name.partition("/")
    return not slash or _matches(of_group, group)  # without one, it begins the names of topics


def _matches(pattern: str, name: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def _covering(resource: str) -> Iterator[str]:
    """The resource, and what it is a part of."""
    yield resource
    kind, _, rest = resource.partition(":")
    if kind in ("group", "queue"):
        rest = rest.partition("/")[0]
        yield f"topic:{rest}"
    if kind in ("group", "queue", "topic"):
        yield f"namespace:{rest.partition(':')[0]}"
