"""The signature of a function declares the arguments and options of its command."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict, Unpack

import click
import pytest
from click.testing import CliRunner

from tms.cli.declaring import ARGUMENT, declared_by
from tms.cli.parameters import SECONDS


@dataclass(frozen=True)
class Pace:
    """Options that belong together."""

    every: Annotated[float, SECONDS] = 1.0
    burst: bool = False


class Choices(TypedDict):
    """Settings that change only if they are typed."""

    size: Annotated[int, "-s", click.IntRange(1, 9)]
    kind: Literal["a", "b"]


def given_to(function: Callable[..., Any], *arguments: str) -> Any:
    """The value that a command returns for these arguments; the text of its error."""
    parameters, run = declared_by(function)
    command = click.Command("it", params=parameters, callback=lambda **given: run(None, **given))
    result = CliRunner().invoke(command, list(arguments), standalone_mode=False)
    return result.return_value if result.exception is None else str(result.exception)


def test_a_parameter_without_a_default_is_an_argument_and_others_are_options() -> None:
    def command(session: None, topic: str, dry_run: bool = False, limit: int = 5) -> object:
        return topic, dry_run, limit

    assert given_to(command, "a") == ("a", False, 5)
    assert given_to(command, "a", "--dry-run", "--limit", "7") == ("a", True, 7)
    assert "topic" in given_to(command).lower()


def test_an_argument_may_have_a_default_and_an_option_may_be_required() -> None:
    def command(
        session: None,
        name: Annotated[str | None, ARGUMENT] = None,
        *,
        parts: Annotated[tuple[int, ...], "-p", "--part"],
    ) -> object:
        return name, parts

    assert given_to(command, "-p", "1", "--part", "2") == (None, (1, 2))
    assert given_to(command, "x", "-p", "3") == ("x", (3,))
    assert "parts" in given_to(command, "x")


def test_fields_of_a_dataclass_are_options_that_come_together() -> None:
    def command(session: None, pace: Pace, words: tuple[str, ...]) -> object:
        return pace, words

    assert given_to(command, "a", "b", "--every", "2m") == (Pace(120.0), ("a", "b"))
    assert given_to(command, "a", "--burst") == (Pace(burst=True), ("a",))


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ([], {"size": None, "kind": None}),
        (["-s", "3", "--kind", "b"], {"size": 3, "kind": "b"}),
        (["--kind", "c"], "'c' is not one of 'a', 'b'"),
        (["--size", "10"], "10 is not in the range 1<=x<=9"),
    ],
)
def test_keys_of_a_typed_dict_are_options_without_defaults(typed: list[str], expected: Any) -> None:
    def command(session: None, **chosen: Unpack[Choices]) -> object:
        return chosen

    found = given_to(command, *typed)
    assert expected in found if isinstance(expected, str) else found == expected
