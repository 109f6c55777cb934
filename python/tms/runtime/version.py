"""The version of TMS, as `pyproject.toml` has it."""

VERSION = "0.1.0"
