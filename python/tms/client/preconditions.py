"""Publishing that expects nobody to have published in between."""

from msgspec import structs

from tms.client.batching import Batcher
from tms.errors import Invalid
from tms.model.ids import MessageId
from tms.model.message import NewBlock
from tms.model.preconditions import ANSWERED, ONE_BLOCK, as_expected
from tms.model.topic import Durability

Expect = MessageId | str


def packed(
    batcher: Batcher, expect: Expect | None, durability: str | None, full: bool
) -> list[NewBlock]:
    """What a batcher has filled; with an expectation it is one block. `full`: more follows. Raises
    `Invalid`."""
    blocks = batcher.pack()
    if expect is None:
        return blocks
    if durability == Durability.NONE:
        raise Invalid(ANSWERED, field="expect")
    if full or len(blocks) > 1:
        raise Invalid(ONE_BLOCK, field="expect")
    return [structs.replace(block, expect=as_expected(expect)) for block in blocks]
