"""The requests of operations that have a `Form`, such as bodies of blocks. Without I/O.

    arguments of an operation ──▶ FormRequest(path and query, body, how the answer is read)

Appends, fetches and receives are the exceptions; see `Calls`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tms.api import bodies, commits, delayed, routes
from tms.api.erasing import ErasedBody, erase_body
from tms.model.message import Buffer, NewBlock
from tms.model.preconditions import expected_text

Arguments = Mapping[str, Any]  # the arguments of an operation, by name


class FormRequest(NamedTuple):
    """A request: `given` are the values in its path and its query; `kind` and `accept` the types of
    its body and answer, and `fields` further lines of its head."""

    given: Arguments
    chunks: Sequence[Buffer]
    read: Callable[[Buffer], Any]
    kind: str = routes.BLOCKS
    accept: str = routes.JSON
    fields: str = ""


def _field(shape: Any, name: str) -> Callable[[Buffer], Any]:
    """Reads a field of an answer of this shape."""
    return lambda body: getattr(bodies.decode(body, shape), name)


def nothing(body: Buffer) -> None:
    """Reads an answer without a body."""
    return None


def _blocks(given: Arguments) -> list[Buffer]:
    return list(bodies.frames(given["blocks"]))


def _erase(given: Arguments) -> FormRequest:
    body = erase_body(given["key"], given["id"], given["partition"])
    return FormRequest(given, [body], _field(ErasedBody, "erased"), routes.JSON)


def _publish_later(given: Arguments) -> FormRequest:
    due, token = given["due"], given["token"]
    delay_s = None if due.delay_ms is None else due.delay_ms / 1_000
    return FormRequest(
        {**given, "deliver_at_ms": due.at_ms, "delay_s": delay_s},
        _blocks(given),
        _field(delayed.DeferredBody, "deferred"),
        fields=f"Idempotency-Key: {token}\r\n" if token else "",
    )


def _stage(given: Arguments) -> FormRequest:
    return FormRequest({**given, "transaction": given["write_pointer"]}, _blocks(given), nothing)


def _commit(given: Arguments) -> FormRequest:
    request = given["request"]
    id = request.transaction_id or routes.NEW_TRANSACTION
    body = commits.encode_commit(request)
    return FormRequest({"id": id}, body, commits.decode_result, routes.COMMIT)


def _move(given: Arguments) -> FormRequest:
    body = bodies.encode(commits.encode_moves(given["changes"]))
    return FormRequest(given, [body], nothing, routes.JSON)


def _image_bytes(given: Arguments) -> FormRequest:
    return FormRequest(given, (), lambda body: body, accept=routes.BYTES)


def _store(given: Arguments) -> FormRequest:
    blocks: Sequence[NewBlock] = given["blocks"]
    expect = ",".join(
        f"{number}:{expected_text(new.expect)}"
        for number, new in enumerate(blocks)
        if new.expect is not None
    )
    sent = {**given, "internal": int(given["internal"]), "expect": expect or None}
    return FormRequest(sent, _blocks(given), _field(bodies.AppendedBody, "appended"))


def _count_stored(given: Arguments) -> FormRequest:
    return FormRequest(
        given, _blocks(given), lambda body: bodies.decode(body, dict[str, int])["stored"]
    )


FORMS: Mapping[str, Callable[[Arguments], FormRequest]] = {
    "topics.erase": _erase,
    "delayed.publish": _publish_later,
    "stage": _stage,
    "commit": _commit,
    "groups.move": _move,
    "backups.read": _image_bytes,
    "partitions.store": _store,
    "partitions.stage": lambda given: FormRequest(given, _blocks(given), nothing),
    "partitions.count_stored": _count_stored,
    "peers.commit_own": _commit,
}
