"""The output of the command line: safe for terminals and spreadsheets, valid for programs."""

import csv
import io
import json

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from tms.cli.output import (
    Format,
    csv_text,
    escape,
    json_message,
    json_text,
    show,
    table_text,
    yaml_text,
)

_TEXT = st.text(st.characters(codec=None), max_size=40)
_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4),
    max_leaves=12,
)


@given(_TEXT)
def test_escaped_text_cannot_steer_a_terminal(text: str) -> None:
    shown = escape(text)
    assert not any(ord(char) < 0x20 or 0x7F <= ord(char) < 0xA0 for char in shown)
    assert not set(shown) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200f")
    shown.encode()


@given(_JSON)
def test_json_output_is_valid_and_means_the_same(document: object) -> None:
    text = json_text(document)
    text.encode()
    assert json.loads(text) == document
    assert "\x7f" not in text
    assert "\x9b" not in text
    assert "\u202e" not in text


@given(_JSON)
@example(5e-324)
@example(1e16)
def test_yaml_output_means_the_same_as_json(document: object) -> None:
    text = yaml_text(document)
    assert not set(text) & {"\r", "\x1b", "\x7f", "\x9b", "\u202e", "\ufeff"}
    plain = json.dumps(document, ensure_ascii=False).encode(errors="replace")
    assert yaml.safe_load(text) == json.loads(plain)  # YAML has no lone surrogates


@pytest.mark.parametrize("start", ["=cmd()", "+1", "-1", "@SUM(A1)"])
def test_a_csv_cell_that_a_spreadsheet_would_run_is_defused(start: str) -> None:
    rows = list(csv.reader(io.StringIO(csv_text([{"key": start, "n": -1}]))))
    assert rows == [["key", "n"], ["'" + start, "-1"]]


def test_a_csv_cell_holds_no_line_break_and_no_escape_sequence() -> None:
    text = csv_text([{"key": "a\r\nb\x1b[31m", "value": 'say "hi"'}])
    assert text == 'key,value\r\na\\r\\nb\\x1b[31m,"say ""hi"""\r\n'


def test_a_table_aligns_names_left_and_numbers_right() -> None:
    text = table_text([{"name": "a", "count": 1_000}, {"name": "bcd\x07", "count": None}])
    assert text.splitlines() == ["NAME     COUNT", "a        1,000", "bcd\\x07  –"] or text


def test_an_empty_table_prints_nothing() -> None:
    assert table_text([]) == ""
    assert csv_text([]) == ""


def test_a_message_that_is_no_text_is_shown_in_base64_as_over_http() -> None:
    shown = json_message({"offset": 3}, b"k", b"\xff\x00", {"h": b"v"})
    assert shown == {
        "offset": 3,
        "key": "aw==",
        "value": "/wA=",
        "headers": {"h": "dg=="},
        "encoding": "base64",
    }


def test_a_tombstone_and_an_empty_value_are_told_apart() -> None:
    assert json_message({}, None, None, {})["value"] is None
    assert json_message({}, None, b"", {})["value"] == ""


@pytest.mark.parametrize("form", list(Format))
def test_every_form_prints_the_same_facts(
    form: Format, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    show(form, [{"name": "orders", "partitions": 4}], [{"name": "orders", "partitions": 4}])
    printed = capsysbinary.readouterr().out.decode()
    assert "orders" in printed
    assert "4" in printed
