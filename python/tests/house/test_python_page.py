"""The page of the Python API says what the code says, and the lists of names in `tms` agree."""

import ast
import inspect

import tms
from tests.house import python_page


def test_the_reference_is_what_the_code_says() -> None:
    text = python_page.PAGE.read_text()
    assert text == python_page.page(text), "run `python -m tests.house.python_page` in python/"


def test_type_checkers_see_the_names_that_are_loaded_when_they_are_used() -> None:
    tree = ast.parse(inspect.getsource(tms))
    seen = {
        alias.asname: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname is not None
    }
    assert seen.pop("telemetry") == "tms.client"
    assert seen == tms._HOMES
    assert all(getattr(tms, name) is not None for name in tms.__all__)
