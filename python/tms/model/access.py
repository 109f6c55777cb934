"""Access control: principals, verbs, patterns of resources, grants and tokens.

    grant      PRINCIPAL VERB PATTERN          ann publish topic:orders
    resource   service, cluster, access, transactions, namespace:NAMESPACE,
               topic:NAMESPACE:TOPIC, group:NAMESPACE:TOPIC/GROUP, queue:NAMESPACE:TOPIC/GROUP
    pattern    a resource; a prefix of one, ended by `*`; or `*` alone

Invariants

* A pattern without a namespace is about the namespace `default`.
* A grant on a topic covers its groups and queues; one on a namespace covers its topics.
"""

import re
from dataclasses import dataclass, field
from enum import StrEnum

from tms.errors import Invalid
from tms.model.topic import DEFAULT_NAMESPACE, NAMESPACE, TOPIC, TOPIC_PREFIX

PRINCIPAL_CHARS_MAX = 128
EVERYBODY = "*"  # every known principal
EXPIRES_S_MAX = 10 * 365 * 86_400
RATE_MIN, RATE_MAX = 0.001, 1e12  # of a quota
PRINCIPAL = "[A-Za-z0-9_][A-Za-z0-9_.@-]{0,127}"  # how one is spelled,
GRANTEE = rf"{PRINCIPAL}|\*"  # and one or everybody
_PRINCIPAL = re.compile(PRINCIPAL)
_PLAIN = ("service", "cluster", "access", "transactions")
_GROUP, _GROUPS = "[^/*]{1,255}", r"[^/*]{0,254}\*"
RESOURCE = (  # how one is spelled,
    f"{'|'.join(_PLAIN)}|namespace:{NAMESPACE}|topic:(?:{NAMESPACE}:)?{TOPIC}"
    f"|(?:group|queue):(?:{NAMESPACE}:)?{TOPIC}/{_GROUP}"
)
PATTERN = (  # and a resource, or a beginning of one
    rf"{RESOURCE}|\*|namespace:[A-Za-z0-9_]{{0,127}}\*|topic:(?:{NAMESPACE}:)?{TOPIC_PREFIX}\*"
    rf"|(?:group|queue):(?:{NAMESPACE}:)?(?:{TOPIC_PREFIX}\*|{TOPIC}/{_GROUPS})"
)
_PATTERN = re.compile(PATTERN)
_IN_NAMESPACE = re.compile(f"^(topic|group|queue):(?!{NAMESPACE}:)")


class Access(StrEnum):
    """The permission that an operation requires: the verb of a grant."""

    OPEN = "open"  # no permission; this and the next are no verbs of grants
    KNOWN = "known"  # any authenticated principal
    OBSERVE = "observe"  # see names, settings and states; every other verb includes it
    PUBLISH = "publish"
    CONSUME = "consume"
    MANAGE = "manage"  # create, change and delete
    OPERATE = "operate"
    ALL = "all"  # all permissions; no operation requires it


VERBS = tuple(verb for verb in Access if verb not in (Access.OPEN, Access.KNOWN))


@dataclass(frozen=True, slots=True)
class Grant:
    """A permission of a principal on the resources that a pattern covers."""

    principal: str
    verb: Access
    pattern: str

    def __str__(self) -> str:
        return f"{self.principal} {self.verb} {self.pattern}"


@dataclass(frozen=True, slots=True)
class Quota:
    """The requests that a principal may make to an instance, on average over a second; None:
    unlimited. `EVERYBODY` stands for each principal without a quota of its own."""

    principal: str
    requests_s: float | None = None
    bytes_in_s: float | None = None
    bytes_out_s: float | None = None


@dataclass(frozen=True, slots=True)
class TokenInfo:
    """A token, without its secret. Times in ms since 1970; 0: it never expires."""

    id: str
    principal: str
    created_ms: int
    expires_ms: int = 0


@dataclass(frozen=True, slots=True)
class NewToken:
    """A new token. `token` is shown this once: only its digest is stored."""

    id: str
    principal: str
    created_ms: int
    expires_ms: int
    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A session of the console, or a one-time link for one (`is_link`), without its secret. `token`
    is the id of the token that it ends with; empty: it was made with a JWT or a certificate. Times
    in ms since 1970."""

    id: str
    principal: str
    token: str
    created_ms: int
    expires_ms: int
    is_link: bool = False


@dataclass(frozen=True, slots=True)
class Credential:
    """The proof of a principal that came with a request. `expires_ms`: in ms since 1970, 0: never;
    `token`: the id of the token, or of that with which the session was made, empty for a JWT or a
    certificate; `session`: the id of the session or link, empty without one."""

    principal: str
    expires_ms: int = 0
    token: str = ""
    session: str = ""
    is_link: bool = False


@dataclass(frozen=True, slots=True)
class AccessDecision:
    """The decision about a permission, and the grant that gives it."""

    allowed: bool
    grant: Grant | None = None


@dataclass(frozen=True, slots=True)
class Identity:
    """A caller's principal, and its permissions."""

    principal: str
    grants: tuple[Grant, ...] = ()


def is_principal(name: str) -> bool:
    """True if this is the name of a principal."""
    return _PRINCIPAL.fullmatch(name) is not None


def check_principal(name: str) -> str:
    """The name itself. Raises `Invalid`."""
    if not isinstance(name, str) or not is_principal(name):
        raise Invalid(
            "A principal is 1 to 128 of A-Z a-z 0-9 _ . @ -, and begins with a letter, a digit or "
            f"_, got {name!r:.80}.",
            field="principal",
        )
    return name


def check_grantee(name: str) -> str:
    """The name of a principal, or `EVERYBODY`. Raises `Invalid`."""
    return name if name == EVERYBODY else check_principal(name)


def check_verb(verb: str) -> Access:
    """The verb of a grant. Raises `Invalid`."""
    if verb not in VERBS:
        raise Invalid(f"A verb is one of {', '.join(VERBS)}, got {verb!r:.40}.", field="verb")
    return Access(verb)


def check_quota(quota: Quota) -> Quota:
    """The quota itself. Raises `Invalid`."""
    check_grantee(quota.principal)
    rates = quota.requests_s, quota.bytes_in_s, quota.bytes_out_s
    if all(rate is None for rate in rates):
        raise Invalid("A quota bounds requests_s, bytes_in_s or bytes_out_s.", field="requests_s")
    for rate in rates:
        if rate is not None and not RATE_MIN <= rate <= RATE_MAX:
            raise Invalid(f"A rate is {RATE_MIN} to {RATE_MAX:.0e} a second, got {rate!r:.40}.")
    return quota


def check_pattern(text: str) -> str:
    """The pattern in its full form, with its namespace. Raises `Invalid`."""
    if not isinstance(text, str) or not _PATTERN.fullmatch(text):
        raise Invalid(
            "A resource is topic:NAMESPACE:TOPIC, group:NAMESPACE:TOPIC/GROUP, "
            "queue:NAMESPACE:TOPIC/GROUP, namespace:NAMESPACE, transactions, cluster, service, "
            "access, or a beginning of one followed by *; or * for all of them. Without NAMESPACE: "
            f"it is default. Got {text!r:.80}.",
            field="pattern",
        )
    return _IN_NAMESPACE.sub(rf"\1:{DEFAULT_NAMESPACE}:", text, count=1)


def check_resource(text: str) -> str:
    """A resource in its full form: a pattern of one. Raises `Invalid`."""
    full = check_pattern(text)
    if full.endswith("*"):
        raise Invalid(f"A resource has no *, got {text!r:.80}.", field="resource")
    return full
