"""What a bus does with views."""

from collections.abc import Callable
from typing import TypeVar, overload

from tms.client.calls import BusCalls
from tms.client.cursor import Start
from tms.client.view import View, ViewFold
from tms.client.view_state import Apply, ViewSnapshot
from tms.errors import Invalid
from tms.model.quantity import Duration, timeout
from tms.model.topic import TopicName

V = TypeVar("V")


class ViewCalls(BusCalls):
    """The part of a bus that makes views. Thread-safe."""

    @overload
    def view(
        self,
        topic: str,
        *,
        apply: None = None,
        at: Start | None = None,
        snapshot: ViewSnapshot[bytes] | None = None,
        on_change: Callable[[bytes, bytes | None], None] | None = None,
        timeout_s: Duration | None = None,
    ) -> View[bytes]: ...

    @overload
    def view(
        self,
        topic: str,
        *,
        apply: Apply[V],
        at: Start | None = None,
        snapshot: ViewSnapshot[V] | None = None,
        on_change: Callable[[bytes, V | None], None] | None = None,
        timeout_s: Duration | None = None,
    ) -> View[V]: ...

    def view(
        self,
        topic: str,
        *,
        apply: Apply[V] | None = None,
        at: Start | None = None,
        snapshot: ViewSnapshot[V] | None = None,
        on_change: Callable[[bytes, V | None], None] | None = None,
        timeout_s: Duration | None = None,
    ) -> View[V]:
        """The newest value of each key as a mapping, read to the end and kept current.

        A tombstone removes its key; messages without a key are left out. With `apply` a value is
        what `apply(before, message)` makes of each message, None for nothing: state from events.
        With `at`, an id, time or position, it is a view of everything before that, which stays so.
        `snapshot` is where it begins instead of at the topic's first message. `on_change(key,
        value)` is called in the thread that reads. Raises `TopicNotFound`, `Invalid`, `Conflict`,
        `OffsetOutOfRange`, and what `apply` raises.
        """
        for name, function in (("apply", apply), ("on_change", on_change)):
            if function is not None and not callable(function):
                raise Invalid(f"{name} is a function, got {function!r:.80}.", field=name)
        made: View[V] = View(
            TopicName.parse(topic),
            self._transport,
            lambda: self._publishing.known(topic) or self.refresh_topic(topic),
            self._clock,
            timeout(timeout_s, self._timeout_s),
            ViewFold(apply, on_change),
        )
        made.load(at, snapshot)
        if at is None:
            made.follow()
            self._open.add(made)
        return made
