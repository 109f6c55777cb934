"""Renders the chart with Helm, for the tests, which have no Helm: `make chart`.

    rendered/NAME.values.yaml ─▶ helm template ─▶ rendered/NAME.yaml

* The first line of a rendering identifies its sources: the digest of all files of the chart and of
  its values. So a test fails if the chart was changed and not rendered again.
"""

import hashlib
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "docker" / "chart"
RENDERED = Path(__file__).parent / "rendered"
NAMES = ("node", "cluster")
RELEASE, NAMESPACE = "tms", "messages"


def digest(name: str) -> str:
    """The digest of a rendering's sources."""
    made = hashlib.sha256()
    values = RENDERED / f"{name}.values.yaml"
    for path in [*sorted(path for path in CHART.rglob("*") if path.is_file()), values]:
        content = path.read_bytes()
        made.update(f"{path.relative_to(ROOT).as_posix()} {len(content)}\n".encode() + content)
    return made.hexdigest()


def render(helm: str, name: str) -> str:
    """The chart that Helm renders with these values, with the line of the digest."""
    values = str(RENDERED / f"{name}.values.yaml")
    command = [helm, "template", RELEASE, str(CHART), "--namespace", NAMESPACE, "--values", values]
    made = subprocess.run(command, capture_output=True, text=True, check=True)
    return f"# made by `make chart` from {digest(name)}\n{made.stdout}"


if __name__ == "__main__":
    for name in NAMES:
        (RENDERED / f"{name}.yaml").write_text(render(sys.argv[1], name))
