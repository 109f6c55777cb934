"""Dead letters that are settled one by one: their ids, and the record of those that are settled.

A queue's position in the topic of its dead letters says how far they are settled: moved back, or
discarded. Those behind it that are settled already stand in the metadata of the position, by their
offsets:

    settled:5,8-12        the letters at 5 and at 8 to 12, both included

* Text of another shape settles nothing: a letter is shown once more rather than lost.
"""

import re
from collections.abc import Collection, Iterator
from itertools import pairwise
from typing import NamedTuple

from tms.errors import Invalid
from tms.model.ids import MESSAGE_ID, MessageId
from tms.model.transaction import METADATA_CHARS_MAX

LETTERS_MAX = 1_000  # of one call
SETTLED_MAX = 100_000  # of a partition behind the position
LETTER_ID = rf"[0-9]{{1,4}}:{MESSAGE_ID}"
_PREFIX = "settled:"
_LETTER_ID = re.compile(rf"([0-9]{{1,4}}):({MESSAGE_ID})", re.ASCII)
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", re.ASCII)


class LetterId(NamedTuple):
    """A dead letter: its partition and id in the topic of the dead letters, as `PARTITION:ID`."""

    partition: int
    id: MessageId

    @classmethod
    def parse(cls, text: str) -> "LetterId":
        """The letter that a text names. Raises `Invalid`."""
        match = _LETTER_ID.fullmatch(text)
        if match is None:
            raise Invalid(
                f"A dead letter is named PARTITION:ID, as `tms queue dead` prints it, got "
                f"{text!r:.80}.",
                field="letters",
            )
        return cls(int(match[1]), MessageId.parse(match[2]))

    def __str__(self) -> str:
        return f"{self.partition}:{self.id}"


def settled_in(metadata: str) -> frozenset[int]:
    """The offsets of settled letters in the metadata of a position."""
    found: set[int] = set()
    if metadata.startswith(_PREFIX):
        for part in metadata.removeprefix(_PREFIX).split(","):
            match = _RANGE.fullmatch(part)
            if match is None:
                return frozenset()
            first = int(match[1])
            last = first if match[2] is None else int(match[2])
            if last - first >= SETTLED_MAX - len(found):
                return frozenset()
            found.update(range(first, last + 1))
    return frozenset(found)


def settled_text(offsets: Collection[int]) -> str:
    """The metadata of these offsets. Raises `Invalid` for more than a position can carry."""
    if not offsets:
        return ""
    runs = ",".join(
        str(first) if first == last else f"{first}-{last}" for first, last in _runs(sorted(offsets))
    )
    text = f"{_PREFIX}{runs}"
    if len(text) > METADATA_CHARS_MAX or len(offsets) > SETTLED_MAX:
        raise Invalid(
            "Too many dead letters of this partition were settled out of order. Redrive or discard "
            "the oldest ones first.",
            field="letters",
        )
    return text


def _runs(offsets: list[int]) -> Iterator[tuple[int, int]]:
    """The first and last offset of each run of neighbours."""
    first = offsets[0]
    for before, offset in pairwise(offsets):
        if offset != before + 1:
            yield first, before
            first = offset
    yield first, offsets[-1]
