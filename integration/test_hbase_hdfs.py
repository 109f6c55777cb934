"""`tms hbase` with its jar in HDFS: over WebHDFS, and by the command `hdfs`."""

import shlex
import sys
from pathlib import Path

import pytest

from integration.cluster.distributed import Distributed
from integration.coprocessor import changed
from integration.deploying import cli_of, jar

__all__ = ["jar"]  # a fixture


@pytest.mark.long
def test_the_jar_is_put_into_hdfs_over_http_and_by_the_command(
    tmp_path: Path,
    jar: Path,
    capsysbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Distributed(tmp_path / "hbase", hdfs=True) as hbase:
        cli = cli_of(hbase.url("tms"), capsysbinary)
        root = f"hdfs://127.0.0.1:{hbase.namenode_port}/tms/jars"
        http = ("--webhdfs", f"http://127.0.0.1:{hbase.webhdfs_port}")
        monkeypatch.setenv("PATH", "")
        install = ["install", "--jar", str(jar), "--jar-directory", root, "--regions", "4"]
        code, said = cli(*install)
        assert code == 78 and "--webhdfs" in said["error"]["next"]
        code, made = cli(*install, *http)
        assert code == 0 and made["coprocessor"]["path"].startswith(root)
        assert cli(*install, *http)[1]["changed"] is False
        monkeypatch.undo()
        _add_command(hbase, tmp_path / "bin", monkeypatch)
        assert cli(*install)[1]["changed"] is False
        new = changed(jar, tmp_path / "new.jar")
        assert cli("upgrade", "--jar", str(new))[0] == 0
        assert cli("upgrade", "--rollback", *http)[0] == 0
        assert cli("status")[0] == 0
        servers = cli("status")[1]["tables"][0]["servers"]
        assert len(servers) == 2, servers


def _add_command(hbase: Distributed, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Add a command `hdfs`, like that of Hadoop's distribution, to the path."""
    directory.mkdir()
    shell = hbase.runtime.command(
        "org.apache.hadoop.fs.FsShell", conf=hbase.directory / "conf-hdfs", heap_mb=128
    )
    command = directory / "hdfs"
    command.write_text(f'#!/bin/sh\ntest "$1" = dfs && shift\nexec {shlex.join(shell)} "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:{Path(sys.executable).parent}:/usr/bin:/bin")
