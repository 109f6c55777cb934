"""A service as a program: its arguments are settings, `data=PATH server.port=0`. A refusal to start
is printed, and the exit code is 3."""

import sys

from tms.errors import TMSError
from tms.serve.config_sources import load
from tms.serve.main import serve


def main() -> None:
    """Serve until a signal."""
    try:
        serve(load(None, dict(pair.split("=", 1) for pair in sys.argv[1:])))
    except TMSError as error:
        print(error.code, error.message, flush=True)
        sys.exit(3)
