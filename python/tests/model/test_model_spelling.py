"""Patterns in documents accept the same texts as their parsers."""

import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.run_seed import examples
from tms.errors import Forbidden, Invalid
from tms.model.access import PATTERN, RESOURCE, check_pattern, check_resource
from tms.model.delayed import DELAYED_ID, DelayedId
from tms.model.filter import FILTER, FILTER_BYTES_MAX, Filter
from tms.model.ids import MESSAGE_ID, MessageId
from tms.model.position import POSITION, Position
from tms.model.queue import DELIVERY_TOKEN, Token
from tms.model.spelling import RETENTION, decimal_in, decimal_up_to
from tms.model.topic import TOPIC_NAME, TopicName, parse_retention
from tms.model.transaction import GROUP_CHARS_MAX, check_group, check_name

READERS: dict[str, Callable[[str], object]] = {
    MESSAGE_ID: MessageId.parse,
    POSITION: Position.parse,
    DELAYED_ID: DelayedId.parse,
    DELIVERY_TOKEN: Token.parse,
    TOPIC_NAME: TopicName.parse,
    RETENTION: parse_retention,
    PATTERN: check_pattern,
    RESOURCE: check_resource,
}
LIMITS = (9, 10, 99, 100, 1_023, 5_217, 36_524, 65_535, 10**6, 2**48 - 1)


@given(st.data())
def test_what_fits_a_pattern_is_read(data: st.DataObject) -> None:
    pattern = data.draw(st.sampled_from([*READERS]))
    READERS[pattern](data.draw(st.from_regex(pattern, fullmatch=True)))


@pytest.mark.parametrize("count", examples(40, 200))
def test_what_fits_the_pattern_of_filters_is_read(count: int) -> None:
    settings(max_examples=count)(
        given(
            st.from_regex(FILTER, fullmatch=True).filter(
                lambda text: len(text) < FILTER_BYTES_MAX / 4
            )
        )(_is_read_as_a_filter)
    )()


def _is_read_as_a_filter(text: str) -> None:
    Filter.parse(text)


@pytest.mark.parametrize("blank", ["\x1c", "\x1f", "\x85", "\ufeff"])
def test_words_of_filters_have_no_character_that_any_dialect_takes_for_blank(
    blank: str,
) -> None:
    elsewhere = FILTER.replace(r"\s", " ")  # a dialect whose `\s` leaves it out
    assert not re.fullmatch(elsewhere, f"header.a{blank}b")
    with pytest.raises(Invalid, match="cannot be read"):
        Filter.parse(f"header.a{blank}b")


@pytest.mark.parametrize("limit", LIMITS)
@given(data=st.data())
def test_a_pattern_of_numbers_ends_at_its_limit(limit: int, data: st.DataObject) -> None:
    near = st.integers(max(limit - 20, 0), limit + 20)
    number = data.draw(st.integers(0, 3 * limit) | near)
    assert bool(re.fullmatch(decimal_up_to(limit), str(number))) == (number <= limit)
    assert bool(re.fullmatch(decimal_in(1, limit), str(number))) == (0 < number <= limit)
    assert not re.fullmatch(decimal_up_to(limit), f"0{number}")


def test_a_pattern_of_numbers_has_at_least_so_many_digits() -> None:
    pattern = re.compile(decimal_in(4, 12_345))
    found = [number for number in range(20_000) if pattern.fullmatch(str(number))]
    assert found == [*range(1_000, 12_346)]


@pytest.mark.parametrize("bad", ["", "a/b", "a\n", "\x7f", "\x85", "\u202e", "\u200b", "\ud800"])
def test_a_name_has_nothing_that_is_not_seen(bad: str) -> None:
    with pytest.raises(Invalid, match="visible"):
        check_name("group", bad, GROUP_CHARS_MAX)


def test_a_name_may_be_in_any_language_and_has_a_length() -> None:
    assert check_group("счета – 请求 ✓") == "счета – 请求 ✓"
    with pytest.raises(Invalid):
        check_group("x" * (GROUP_CHARS_MAX + 1))
    with pytest.raises(Forbidden):
        check_group("system:x")


def test_a_group_in_a_resource_may_have_a_colon() -> None:
    assert check_pattern("queue:orders/a:b") == "queue:default:orders/a:b"
    assert check_pattern("queue:shop:orders/a:b") == "queue:shop:orders/a:b"
