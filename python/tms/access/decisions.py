"""Every decision about access: a principal, a verb and a resource in; a grant or `Forbidden` out.

    principal, verb, resource ─▶ a grant, or Forbidden ─▶ audit log
    principal ─▶ its quota ─▶ passes now, or Overloaded

Invariants

* A request that no grant covers is refused.
* A decision is remembered until any token, grant or quota changes. Refusals are not remembered.
* The audit log has every refusal and every change of access, and no secret. Of many refusals of an
  address for one reason it has ever fewer.
* No protocol is known here: a front end identifies the principal, and asks.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from tms.access.grants import example_of, some_topic
from tms.access.quotas import Meter
from tms.access.records import AccessRecords
from tms.errors import Forbidden, Overloaded
from tms.model.access import Access
from tms.model.topic import TopicName
from tms.model.transaction import Commit, CommitResult, unknown_transaction
from tms.runtime.clock import Clock
from tms.runtime.events import EventLog

INSTANCE = "@instance"  # an instance that asks for itself; no principal has this name
DECISIONS_MAX = 100_000  # remembered; with one more all are forgotten
RESOURCE_CHARS_MAX = 600  # of a resource that is remembered: kind, namespace, topic and group
GUESSERS_MAX = 4_096  # addresses and reasons of which refusals are counted
GUESSES_FREE = 5  # refusals of an address that are all logged, and answered at once
GUESSES_FORGOTTEN_S = 60.0
_WRITTEN_DOWN = (Access.MANAGE, Access.OPERATE)
_TOPICS = "topic"
_audit = EventLog("tms.audit")


class AccessRequest(Protocol):
    """A request of any protocol, as decisions and the audit log see it. `principal` is empty until
    it is identified; `instance` forwarded the request and is empty for clients; `operation` names
    what is asked for; `via` names the front end that asks for the client, and is empty without one;
    `charged` bytes of `sent` have been counted for the quota."""

    principal: str
    instance: str
    operation: str
    via: str
    request_id: str
    received: int
    sent: int
    charged: int

    @property
    def peer_address(self) -> str:
        """The address of the client."""
        ...

    def abort(self) -> None:
        """End the request: its principal may not do any more what it requires."""
        ...


class _UnderWay(NamedTuple):
    """A request that is being answered: True from `is_known` if its token is valid, and the verbs
    and resources that it required."""

    is_known: Callable[[], bool]
    needed: list[tuple[Access, str]]


class AccessDecisions:
    """Decides for all front ends. Used by the event loop's thread, but for `may`, `require…` and
    `write_change`. With `audits_all` requests that were allowed and change only messages are
    written to the audit log, too."""

    def __init__(self, records: AccessRecords, clock: Clock, audits_all: bool = False) -> None:
        self._records = records
        self._clock = clock
        self.audits_all = audits_all
        self._remembered: dict[tuple[str, Access, str], bool] = {}
        self._active: dict[AccessRequest, _UnderWay] = {}
        self._meters: dict[str, Meter] = {}  # of principals that have a quota
        self._refusals: OrderedDict[tuple[str, str], tuple[int, float]] = OrderedDict()

    # -- requests under way ------------------------------------------------------------------------

    def begin(self, request: AccessRequest, is_known: Callable[[], bool]) -> None:
        """Note everything that a request requires from now on: it is aborted once its principal may
        not do that any more, or `is_known` says that its token is not valid any more."""
        self._active[request] = _UnderWay(is_known, [])

    def leave(self, request: AccessRequest) -> None:
        """Count a request that was answered for its principal's quota, and forget it."""
        self._active.pop(request, None)
        meter = self._meters.get(request.principal) if self._meters else None
        if meter is not None:
            meter.end(request.received, request.sent - request.charged)

    def changed(self) -> None:
        """Forget earlier decisions, and abort requests that are no longer allowed: tokens, grants
        or quotas have changed."""
        self._remembered = {}  # other threads may be adding to the one before
        for principal in [*self._meters]:
            if self._records.quota(principal) is None:
                del self._meters[principal]
        for request, (is_known, needed) in [*self._active.items()]:
            allowed = all(self.may(request.principal, *one) for one in needed)
            if not (allowed and is_known()):
                request.abort()

    # -- quotas ------------------------------------------------------------------------------------

    def measure(self, request: AccessRequest) -> None:
        """Count a request. Raises `Overloaded` if its principal's quota is used up."""
        meter = self._meter(request)
        if meter is None:
            return
        wait_s = meter.wait_s(self._clock.monotonic_s())
        if wait_s > 0:
            self.note_refusal(request, "quota")
            request.principal = ""  # a refused request is not counted
            raise Overloaded(
                f"The quota of {meter.quota.principal} is used up. Try again in {wait_s:.3g} s.",
                retry_after_s=max(1, math.ceil(wait_s)),
            )
        meter.begin()

    def count(self, request: AccessRequest) -> None:
        """Count a request of a protocol that slows clients down instead of refusing them."""
        meter = self._meter(request)
        if meter is not None:
            meter.begin()

    def owed_s(self, request: AccessRequest) -> float:
        """Seconds that the next request of this principal has to wait for its quota."""
        meter = self._meter(request)
        return 0.0 if meter is None else meter.wait_s(self._clock.monotonic_s())

    def charge(self, request: AccessRequest) -> float:
        """Count the bytes that were sent so far of an answer that goes on; returns the seconds that
        it has to pause for its principal's quota."""
        meter = self._meter(request)
        if meter is None:
            return 0.0
        meter.end(0, request.sent - request.charged)
        request.charged = request.sent
        return meter.wait_s(self._clock.monotonic_s())

    def _meter(self, request: AccessRequest) -> Meter | None:
        """The meter of a request's principal; None without a quota, and for forwarded requests,
        which the forwarding instance has measured."""
        if request.instance:
            return None
        if (quota := self._records.quota(request.principal)) is None:
            return None
        meter = self._meters.get(request.principal)
        if meter is None or meter.quota != quota:
            meter = self._meters[request.principal] = Meter(quota, self._clock.monotonic_s())
        return meter

    # -- grants ------------------------------------------------------------------------------------

    def may(self, principal: str, verb: Access, resource: str) -> bool:
        """True if a grant allows this to a principal."""
        if principal == INSTANCE:
            return True
        key = (principal, verb, resource)
        remembered = self._remembered  # before the grants: a change replaces it
        allowed = remembered.get(key)
        if allowed is None:
            allowed = self._records.grants(principal).find(verb, resource) is not None
            # Refusals, and names that nothing can have, would fill the memory.
            if allowed and len(resource) <= RESOURCE_CHARS_MAX:
                if len(remembered) >= DECISIONS_MAX:
                    remembered.clear()
                remembered[key] = True
        return allowed

    def may_some(self, principal: str, verb: Access, namespace: str) -> bool:
        """True if a grant allows this to a principal for a topic of a namespace."""
        return self.may(principal, verb, some_topic(namespace))

    def require(self, request: AccessRequest, verb: Access, resource: str) -> None:
        """Raise `Forbidden` unless the request's principal may do this."""
        allowed = self.may(request.principal, verb, resource)
        if allowed and request in self._active:
            self._active[request].needed.append((verb, resource))
        if request.principal == INSTANCE:
            return
        if not allowed or self.audits_all or verb in _WRITTEN_DOWN:
            self._write_down(request, verb, resource, allowed)
        if not allowed:
            also = ", or any other verb, which includes it" if verb is Access.OBSERVE else ""
            raise Forbidden(
                f"{request.principal} may not {verb} {resource}. An administrator allows it with "
                f"`tms grant add {request.principal} {verb} {example_of(resource)}`{also}.",
                principal=request.principal,
                verb=verb,
                resource=resource,
            )

    def require_list(
        self, request: AccessRequest, resource: str, kind: str
    ) -> Callable[[str], bool] | None:
        """Raise `Forbidden` unless the request's principal may see the resources of a `kind` in
        this one, or some of them. Returns a filter of their names; None: all may be seen."""
        principal = request.principal
        within = _within(resource, kind)
        grants = self._records.grants(principal)
        reaches = any(grants.reach_into(_within(resource, one)) for one in (kind, _TOPICS))
        if self.may(principal, Access.OBSERVE, resource) or not reaches:
            self.require(request, Access.OBSERVE, resource)
            return None

        def sees(name: str) -> bool:
            grant = self._records.grants(principal).find(Access.OBSERVE, within + name)
            return grant is not None

        if self.audits_all:
            self._write_down(request, Access.OBSERVE, f"{within}*", True)
        return sees

    def require_commit(self, request: AccessRequest, commit: Commit) -> None:
        """Raise `Forbidden` unless the request's principal may change all that a transaction
        changes."""
        topics = {one.topic for one in commit.blocks} | {one.topic for one in commit.staged}
        for name in topics:
            self.require(request, Access.PUBLISH, topic_resource(name))
        for group, topic in {(one.key.group, one.key.topic) for one in commit.positions}:
            self.require(request, Access.CONSUME, f"group:{topic.namespace}:{topic.topic}/{group}")
        for group, topic in {(one.group, one.topic) for one in commit.settlements}:
            self.require(request, Access.CONSUME, f"queue:{topic.namespace}:{topic.topic}/{group}")

    def require_seen(self, request: AccessRequest, result: CommitResult) -> None:
        """Raise `TransactionNotFound` unless the request's principal may observe the topics of a
        commit."""
        for name in {one.topic for one in result.appended}:
            if not self.may(request.principal, Access.OBSERVE, topic_resource(name)):
                raise unknown_transaction(result.transaction_id)

    def require_own(self, request: AccessRequest, id: int, client: str | None) -> None:
        """Raise `TransactionNotFound` unless the request's principal began this transaction as
        `client`, or may operate all of them."""
        if client == request.principal:
            return
        try:
            self.require(request, Access.OPERATE, "transactions")
        except Forbidden:
            raise unknown_transaction(id) from None

    # -- audit log ---------------------------------------------------------------------------------

    def note_refusal(self, request: AccessRequest, why: str, **also: str) -> int:
        """Count a refusal, and log it unless there were many; returns how many there were lately of
        the same address and reason. The log has `also`."""
        now_s = self._clock.monotonic_s()
        key = (request.peer_address, why)
        count, since_s = self._refusals.pop(key, (0, now_s))
        if now_s - since_s > GUESSES_FORGOTTEN_S:
            count, since_s = 0, now_s
        count += 1
        self._refusals[key] = count, since_s
        while len(self._refusals) > GUESSERS_MAX:
            self._refusals.popitem(last=False)
        if count <= GUESSES_FREE or not count & (count - 1):  # a power of two
            _audit.warning("access_refused", why=why, count=count, **also, **_facts(request))
        return count

    def write_change(self, request: AccessRequest, changed: Mapping[str, object]) -> None:
        """Log a change of tokens, grants or quotas, without secrets."""
        _audit.info(
            "access_changed",
            changed={name: value for name, value in changed.items() if value is not None},
            **_facts(request),
        )

    def write_instance(self, event: str, request: AccessRequest) -> None:
        """Log an event of a request of another instance."""
        _audit.info(event, **_facts(request))

    def _write_down(
        self, request: AccessRequest, verb: Access, resource: str, allowed: bool
    ) -> None:
        write = _audit.info if allowed else _audit.warning
        write(
            "access_allowed" if allowed else "access_denied",
            verb=str(verb),
            resource=resource,
            **_facts(request),
        )


def topic_resource(name: TopicName) -> str:
    """A topic as a resource."""
    return f"topic:{name.namespace}:{name.topic}"


def _facts(request: AccessRequest) -> dict[str, str]:
    """The principal of a request and its origin, for the audit log."""
    also = {"instance": request.instance, "via": request.via}
    return {
        "principal": request.principal,
        "operation": request.operation,
        "request_id": request.request_id,
        "address": request.peer_address,
    } | {name: value for name, value in also.items() if value}


def _within(resource: str, kind: str) -> str:
    """The common beginning of the resources of a kind in this one."""
    above, _, rest = resource.partition(":")
    return f"{kind}:{rest}:" if above == "namespace" else f"{kind}:{rest}/"
