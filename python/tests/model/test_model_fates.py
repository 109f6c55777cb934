"""The outcomes of messages, as an image of all transactions decides them."""

import pytest

from tms.model.snapshot import POINTERS_PER_MS, Fate, TransactionType
from tms.model.transaction_image import (
    Fates,
    InProgress,
    TransactionImage,
    decode_image,
    encode_image,
)

NOW, LIFETIME_MS = 1_700_000_000_000, 1_000
FATES = Fates(
    TransactionImage(
        NOW,
        read_pointer=70,
        write_pointer=90,
        invalid=(10, 11, 50),
        in_progress=(
            InProgress(40, NOW, 39, TransactionType.SHORT, (80,)),
            InProgress(80, NOW, 39, None),
        ),
        lost=((20, 25), (60, 61)),
    ),
    LIFETIME_MS,
)


@pytest.mark.parametrize(
    ("pointers", "fate"),
    [
        ((9, 12, 19, 25, 59, 61, 70), Fate.VISIBLE),
        ((71, 90), Fate.VISIBLE),  # above the read pointer: from `TransactionState.fate`
        ((10, 11, 50), Fate.SKIPPED),
        ((20, 24, 60), Fate.SKIPPED),
        ((40, 80), Fate.OPEN),  # also a checkpoint
        ((91, 1_000, 2**62), Fate.OPEN),  # assigned after the image, whatever the outcome
    ],
)
def test_a_pointer_that_was_given_here_has_the_fate_that_the_image_says(
    pointers: tuple[int, ...], fate: Fate
) -> None:
    assert {FATES.of(pointer, True) for pointer in pointers} == {fate}


def test_a_foreign_one_is_open_until_it_is_too_old_to_commit_and_never_visible() -> None:
    oldest = (NOW - LIFETIME_MS) * POINTERS_PER_MS
    assert FATES.of(oldest - 1, False) is Fate.SKIPPED
    assert FATES.of(oldest, False) is Fate.OPEN
    assert FATES.of(NOW * POINTERS_PER_MS, False) is Fate.OPEN


def test_nothing_that_is_open_began_before_the_oldest_that_is_in_progress() -> None:
    began_ms = NOW - 500
    pointer = began_ms * POINTERS_PER_MS
    image = TransactionImage(
        NOW, pointer - 1, pointer, in_progress=(InProgress(pointer, NOW, 0, TransactionType.LONG),)
    )
    assert Fates(image, LIFETIME_MS).undecided_since_ms(foreign=False) == began_ms
    assert Fates(image, LIFETIME_MS).undecided_since_ms(foreign=True) == NOW - LIFETIME_MS
    assert Fates(image, 100).undecided_since_ms(foreign=True) == began_ms
    idle = TransactionImage(NOW, 5, 5)
    assert Fates(idle, LIFETIME_MS).undecided_since_ms(foreign=False) == NOW


def test_without_an_image_everything_that_was_given_is_open() -> None:
    assert Fates(TransactionImage(0, 0, 0), LIFETIME_MS).of(1, True) is Fate.OPEN


def test_fates_are_the_same_once_the_image_was_stored() -> None:
    image = FATES._image
    again = Fates(decode_image(encode_image(image)), LIFETIME_MS)
    for pointer in range(1, 100):
        assert again.of(pointer, True) is FATES.of(pointer, True)
