"""HBase to try TMS on: `python -m integration.cluster` starts one and keeps it until Ctrl-C.

It prints its address. Data in a `--directory` is there again after the next start.
"""

import argparse
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType

from integration.cluster import archive
from integration.cluster.hbase import Standalone
from integration.cluster.runtime import LINES, Unavailable, resolve, resolve_connector
from integration.cluster.site import listens


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m integration.cluster",
        description="Run a standalone HBase and its Thrift 2 gateway until Ctrl-C; prints its URL.",
    )
    parser.add_argument(
        "--directory",
        type=Path,
        metavar="PATH",
        help="keep data and logs here; without it they are deleted at the end",
    )
    parser.add_argument(
        "--port", type=int, help="of the Thrift 2 gateway; without it any one that is free"
    )
    parser.add_argument(
        "--thrift1", action="store_true", help="start the Thrift 1 gateway (happybase) too"
    )
    parser.add_argument("--line", choices=LINES, default="", help="of HBase [2.6]")
    parser.add_argument(
        "--resolve", action="store_true", help="only fetch the jars of HBase and make their archive"
    )
    parser.add_argument(
        "--resolve-connector",
        action="store_true",
        help="only fetch the jars with which Spark 3.5 reads HBase, then end",
    )
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        if options.resolve:
            runtime = resolve(options.line)
            if not options.line:  # the line of most tests
                archive.make(runtime)
            print(runtime.lib)
        elif options.resolve_connector:
            print(resolve_connector())
        elif options.directory is not None:
            _run(options.directory, options)
        else:
            with tempfile.TemporaryDirectory(prefix="tms-hbase-") as directory:
                _run(Path(directory), options)
    except Unavailable as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        pass
    return 0


def _run(directory: Path, options: argparse.Namespace) -> None:
    if options.port is not None and listens(options.port):
        raise Unavailable(f"port {options.port} is taken; name another one with --port")
    print(f"starting HBase in {directory} (about half a minute)", file=sys.stderr)
    hbase = Standalone(directory, runtime=resolve(options.line), port=options.port)
    try:
        hbase.start()
        if options.thrift1:
            print(f"Thrift 1 (happybase) at 127.0.0.1:{hbase.thrift1_port()}", file=sys.stderr)
        print(f"ZooKeeper at {hbase.zookeeper}; Ctrl-C ends it", file=sys.stderr)
        print(hbase.url(), flush=True)
        while True:
            signal.pause()
    finally:
        print("stopping HBase", file=sys.stderr)
        if options.directory is None:
            hbase.kill()
        else:
            hbase.stop()


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    raise SystemExit(main())
