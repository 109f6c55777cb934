"""The grammar of filters, and the messages that they match."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.block.test_model_block import MESSAGES, Messages
from tms.block import Compression, decode, encode
from tms.errors import Invalid
from tms.model.filter import CONDITIONS_MAX, FILTER_BYTES_MAX, Condition, Filter, Operator


@pytest.mark.parametrize(
    ("text", "conditions"),
    [
        ("key=a", [(None, "=", b"a")]),
        ("  key ^=\tuser-  ", [(None, "^=", b"user-")]),
        ("key = and and key ^= key", [(None, "=", b"and"), (None, "^=", b"key")]),
        ("header.kind", [("kind", "", b"")]),
        ("header.kind and header.key", [("kind", "", b""), ("key", "", b"")]),
        ("header.order.type = a/b:c.d", [("order.type", "=", b"a/b:c.d")]),
        ('header."odd = name"="two words"', [("odd = name", "=", b"two words")]),
        (r'key = "a\"\u00e9\n"', [(None, "=", 'a"é\n'.encode())]),
        ('key = x"00fF" and key = x""', [(None, "=", b"\x00\xff"), (None, "=", b"")]),
        ('key = ""', [(None, "=", b"")]),
        ("key = Zürich", [(None, "=", "Zürich".encode())]),
        ("key = key", [(None, "=", b"key")]),
    ],
)
def test_a_filter_says_what_it_says(text: str, conditions: list[tuple[str, str, bytes]]) -> None:
    expected = [Condition(name, Operator(op), value) for name, op, value in conditions]
    assert Filter.parse(text).conditions == tuple(expected)
    assert Filter.parse(text).text == text


@pytest.mark.parametrize(
    ("text", "character"),
    [
        ("", 1),
        ("   ", 4),
        ("key", 4),
        ("key =", 6),
        ("key == a", 6),
        ("key ~ a", 5),
        ("keys = a", 1),
        ("value = a", 1),
        ("key = a or key = b", 9),
        ("key = a key = b", 9),
        ("key = a and", 12),
        ("key = a and and", 13),
        ("and key = a", 1),
        ("header. = a", 8),
        ('header."" = a', 8),
        ('key = "open', 7),
        ('key = "bad \\escape"', 7),
        ('key = "\\ud800"', 7),
        ('key = x"0"', 7),
        ('key = x"0g"', 7),
        ("key = a^b", 8),
        ("key ^ a", 5),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(text: str, character: int) -> None:
    with pytest.raises(Invalid, match=f"at character {character}:") as caught:
        Filter.parse(text)
    assert (caught.value.details["field"], caught.value.details["character"]) == (
        "filter",
        character,
    )


def test_filters_have_bounds() -> None:
    most = " and ".join(["key=a"] * CONDITIONS_MAX)
    assert len(Filter.parse(most).conditions) == CONDITIONS_MAX
    with pytest.raises(Invalid):
        Filter.parse(f"{most} and key=a")
    longest = "key=" + "a" * (FILTER_BYTES_MAX - 4)
    assert Filter.parse(longest).conditions[0].value == b"a" * (FILTER_BYTES_MAX - 4)
    with pytest.raises(Invalid):
        Filter.parse(longest + "a")


@given(st.text(max_size=30))
def test_any_text_is_a_filter_or_invalid(text: str) -> None:
    try:
        Filter.parse(text)
    except Invalid as error:
        assert error.details["field"] == "filter"


CELLS = st.none() | st.text("abé", max_size=2).map(str.encode)
ROWS = st.lists(
    st.tuples(
        CELLS,
        CELLS,
        st.dictionaries(st.sampled_from(["h", "i"]), st.sampled_from([b"", b"a", b"ab"])),
    ),
    min_size=1,
    max_size=60,
)
CONDITIONS = st.lists(
    st.tuples(
        st.sampled_from([None, "h", "i"]),
        st.sampled_from(["=", "^=", ""]),
        st.text("abé", max_size=2),
    ),
    min_size=1,
    max_size=3,
)


@given(ROWS, CONDITIONS, st.sampled_from(Compression))
def test_what_matches_fulfils_every_condition(
    rows: list[tuple[bytes | None, bytes | None, dict[str, bytes]]],
    conditions: list[tuple[str | None, str, str]],
    compression: Compression,
) -> None:
    def text(name: str | None, operator: str, value: str) -> str:
        place = "key" if name is None else f"header.{name}"
        operator = operator or ("=" if name is None else "")
        return f"{place} {operator} {json.dumps(value) if operator else ''}"

    def matches(key: bytes | None, headers: dict[str, bytes]) -> bool:
        for name, operator, value in conditions:
            cell = key if name is None else headers.get(name)
            wanted = value.encode()
            if cell is None:
                return False
            if (operator == "=" or (not operator and name is None)) and cell != wanted:
                return False
            if operator == "^=" and not cell.startswith(wanted):
                return False
        return True

    keys, values, headers = (list(column) for column in zip(*rows, strict=True))
    columns = decode(encode(values, keys, headers, compression=compression))
    where = Filter.parse(" and ".join(text(*one) for one in conditions))
    expected = [at for at, (key, _, row) in enumerate(rows) if matches(key, row)]
    assert [*where.places(columns)] == expected


@given(MESSAGES)
def test_a_header_that_is_there_matches_whatever_its_value(messages: Messages) -> None:
    columns = decode(encode(*messages))
    for name in {name for row in messages.headers for name in row}:
        found = Filter.parse(f"header.{json.dumps(name)}").places(columns)
        assert [*found] == [at for at, row in enumerate(messages.headers) if name in row]
