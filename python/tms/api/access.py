"""The operations on access: tokens, grants, quotas, identities."""

from typing import Annotated, Protocol

from msgspec import Meta

from tms.api.operation import (
    Caller,
    Named,
    Repeat,
    Resource,
    ShownCredential,
    delete,
    get,
    post,
    put,
)
from tms.model.access import (
    EXPIRES_S_MAX,
    GRANTEE,
    PATTERN,
    PRINCIPAL,
    RATE_MAX,
    RATE_MIN,
    RESOURCE,
    VERBS,
    Access,
    AccessDecision,
    Credential,
    Grant,
    Identity,
    NewToken,
    Quota,
    SessionInfo,
    TokenInfo,
)
from tms.model.spelling import either, one_of, spelled

PrincipalName = Annotated[
    str,
    Meta(description="A program, or a person."),
    spelled(PRINCIPAL),
]
Grantee = Annotated[
    str,
    Meta(
        description="A principal; `*` for every one that is known.",
    ),
    spelled(GRANTEE),
]
VerbText = Annotated[str, one_of(*VERBS)]
PatternText = Annotated[
    str,
    Meta(
        description="`topic:NAMESPACE:TOPIC`, `group:NAMESPACE:TOPIC/GROUP`, "
        "`queue:NAMESPACE:TOPIC/GROUP`, `namespace:NAMESPACE`, `transactions`, `cluster`, "
        "`service`, `access`, or a beginning of one and `*`.",
    ),
    spelled(PATTERN),
]
ResourceText = Annotated[str, Meta(description="As a pattern, without `*`."), spelled(RESOURCE)]
Rate = Annotated[float, Meta(ge=RATE_MIN, le=RATE_MAX)]
TokenId = Annotated[str, Meta(pattern="^[0-9a-f]{12}$")]


_SOME_RATE = either(
    *(
        {"required": [name], "properties": {name: {"type": "number"}}}
        for name in ("requests_s", "bytes_in_s", "bytes_out_s")
    )
)


class AccessApi(Protocol):
    """Authentication and authorization. `tms.access.records.AccessRecords` documents the
    promises."""

    @get("access/tokens", Resource.ACCESS, Access.MANAGE)
    def list_tokens(
        self,
    ) -> Annotated[list[TokenInfo], Named("AccessTokens", "Tokens.", "tokens")]:
        """All tokens, without their secrets."""

    @post("access/tokens", Resource.ACCESS, Access.MANAGE, repeat=Repeat.UNSAFE)
    def create_token(
        self,
        principal: PrincipalName,
        expires_s: Annotated[float, Meta(gt=0, le=EXPIRES_S_MAX)] | None = None,
        *,
        caller: Annotated[str, Caller] = "",
    ) -> NewToken:
        """A new token of a principal. Its text is shown this once."""

    @delete("access/tokens/{id}", Resource.ACCESS, Access.MANAGE, repeat=Repeat.UNTIL_GONE)
    def revoke_token(self, id: TokenId) -> None:
        """Revoke a token with its sessions, or end a session of the console."""

    @get("access/sessions", Resource.ACCESS, Access.MANAGE)
    def list_sessions(
        self,
    ) -> Annotated[list[SessionInfo], Named("AccessSessions", "Sessions.", "sessions")]:
        """All sessions of the console, and one-time links, without their secrets."""

    @post("access/sessions", Resource.ACCESS, Access.KNOWN, repeat=Repeat.UNSAFE)
    def create_session(
        self, one_time: bool = False, *, shown: Annotated[Credential | None, ShownCredential] = None
    ) -> NewToken:
        """A session of the console for the caller, or a one-time link. Its text is shown this
        once."""

    @post("access/sessions/redeem", Resource.ACCESS, Access.KNOWN, repeat=Repeat.UNSAFE)
    def redeem_link(
        self, *, shown: Annotated[Credential | None, ShownCredential] = None
    ) -> NewToken:
        """The session of the console for a one-time link, which is shown as the bearer token."""

    @delete("access/sessions/own", Resource.ACCESS, Access.KNOWN, repeat=Repeat.UNTIL_GONE)
    def end_session(self, *, shown: Annotated[Credential | None, ShownCredential] = None) -> None:
        """End the session that the caller shows."""

    @get("access/grants", Resource.ACCESS, Access.MANAGE)
    def list_grants(
        self, principal: Grantee | None = None
    ) -> Annotated[list[Grant], Named("AccessGrants", "Grants.", "grants")]:
        """All grants, or those of a principal."""

    @put("access/grants", Resource.ACCESS, Access.MANAGE)
    def add_grant(self, principal: Grantee, verb: VerbText, pattern: PatternText) -> Grant:
        """Let a principal do something with the resources that a pattern covers."""

    @delete("access/grants", Resource.ACCESS, Access.MANAGE, repeat=Repeat.UNTIL_GONE)
    def remove_grant(self, principal: Grantee, verb: VerbText, pattern: PatternText) -> None:
        """Remove a grant."""

    @get("access/quotas", Resource.ACCESS, Access.MANAGE)
    def list_quotas(
        self,
    ) -> Annotated[list[Quota], Named("AccessQuotas", "Quotas.", "quotas")]:
        """All quotas."""

    @put("access/quotas", Resource.ACCESS, Access.MANAGE, body_shape=_SOME_RATE)
    def set_quota(
        self,
        principal: Grantee,
        requests_s: Rate | None = None,
        bytes_in_s: Rate | None = None,
        bytes_out_s: Rate | None = None,
    ) -> Quota:
        """Bound the requests and bytes of a principal at an instance, on average over a second."""

    @delete("access/quotas", Resource.ACCESS, Access.MANAGE, repeat=Repeat.UNTIL_GONE)
    def remove_quota(self, principal: Grantee) -> None:
        """Remove the quota of a principal."""

    @get("access/explain", Resource.ACCESS, Access.MANAGE)
    def explain(
        self, principal: PrincipalName, verb: VerbText, resource: ResourceText
    ) -> AccessDecision:
        """If a principal may do something with a resource, and the grant that allows it."""

    @get("access/whoami", Resource.SERVICE, Access.KNOWN)
    def whoami(self, *, caller: Annotated[str, Caller] = "") -> Identity:
        """The caller's name and its grants."""
