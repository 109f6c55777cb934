"""Puts the coprocessor's jar into the wheel and the source archive when it was built (`make jar`),
so that `tms hbase install` has it wherever TMS was installed with pip."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the jar of the version that is built; an editable tree has it where Maven put it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        name = f"tms-coprocessor-{self.metadata.version}.jar"
        jar = Path(self.root) / "coprocessor" / "target" / name
        if version == "editable" or not jar.is_file():
            return
        inside = (
            "coprocessor/target" if self.target_name == "sdist" else "tms/store/hbase/deployment"
        )
        build_data["force_include"][str(jar)] = f"{inside}/{name}"
