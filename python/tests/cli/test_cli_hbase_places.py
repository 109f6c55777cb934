"""Places of jars for region servers: shared directories, `hdfs dfs`, WebHDFS."""

import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from tms.errors import ConfigError, Forbidden, StorageUnavailable
from tms.store.hbase.deployment import jar_places as places

NAME = "tms-coprocessor-0.1.0-00000000.jar"


# --- a directory that all servers see ------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "file://"])
def test_a_jar_is_put_into_a_directory_once(tmp_path: Path, prefix: str) -> None:
    place = places.parse(f"{prefix}{tmp_path}/jars/", None)
    assert place.local
    assert place.url(NAME) == f"file://{tmp_path}/jars/{NAME}"
    assert place.content(NAME) is None
    assert place.put(NAME, b"jar") is True
    made = tmp_path / "jars" / NAME
    before = made.stat()
    assert place.put(NAME, b"jar") is False
    assert (made.stat().st_ino, made.stat().st_mode & 0o777) == (before.st_ino, 0o644)
    assert os.listdir(tmp_path / "jars") == [NAME]
    assert places.place_of(place.url(NAME), None)[0].content(NAME) == b"jar"


def test_a_torn_jar_is_replaced(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b"j")
    assert places.parse(str(tmp_path), None).put(NAME, b"jar") is True
    assert (tmp_path / NAME).read_bytes() == b"jar"


def test_a_directory_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for directory in (tmp_path / "no" / "parent", tmp_path / "file"):
        with pytest.raises(ConfigError, match=str(directory)) as raised:
            places.parse(str(directory), None).put(NAME, b"jar")
        assert raised.value.details["next"]
    assert sorted(os.listdir(tmp_path)) == ["file"]


def test_a_full_disk_leaves_no_jar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match="No space left"):
        places.parse(str(tmp_path), None).put(NAME, b"jar")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("text", ["", "jars", "./jars", "s3://b/c", "/a|b", "/a,b", "hdfs://h"])
def test_what_is_no_directory_for_jars_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--jar-directory"):
        places.parse(text, "http://h:1")


# --- HDFS by its command -------------------------------------------------------------------------

# A stand-in for `hdfs dfs`, on a directory.
_COMMAND = """\
#!/bin/sh
root={root}
echo "$@" >> $root/calls
shift
case $1 in
  -cat)   cat $root/${{2#hdfs://h:1/}} ;;
  -mkdir) mkdir -p $root/${{3#hdfs://h:1/}} ;;
  -put)   cp $3 $root/${{4#hdfs://h:1/}} ;;
  -chmod) test $2 = 644 ;;
  *)      exit 9 ;;
esac
"""


@pytest.fixture
def hadoop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory in the place of HDFS, and the command for it."""
    root = tmp_path / "hdfs-root"
    root.mkdir()
    command = tmp_path / "bin" / "hdfs"
    command.parent.mkdir()
    command.write_text(_COMMAND.format(root=root))
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}:{os.environ['PATH']}")
    return root


def test_a_jar_is_put_into_hdfs_by_its_command(hadoop: Path) -> None:
    place = places.parse("hdfs://h:1/tms/jars", None)
    assert not place.local
    assert place.url(NAME) == f"hdfs://h:1/tms/jars/{NAME}"
    assert place.put(NAME, b"jar") is True
    assert place.put(NAME, b"jar") is False
    assert (hadoop / "tms" / "jars" / NAME).read_bytes() == b"jar"
    assert [line.split()[1] for line in (hadoop / "calls").read_text().splitlines()] == [
        *("-cat", "-mkdir", "-put", "-chmod", "-cat"),  # looks, writes, reads back
        "-cat",
    ]


def test_what_hdfs_says_is_told(hadoop: Path) -> None:
    (hadoop.parent / "bin" / "hdfs").write_text(
        "#!/bin/sh\necho 'WARN x' >&2\necho 'cat: Connection refused' >&2\nexit 1\n"
    )
    with pytest.raises(StorageUnavailable, match="Connection refused"):
        places.parse("hdfs://h:1/tms", None).put(NAME, b"jar")


def test_a_write_that_reads_back_differently_is_an_error(hadoop: Path) -> None:
    command = hadoop.parent / "bin" / "hdfs"
    command.write_text(command.read_text().replace("cp $3", "head -c 2 $3 >"))
    with pytest.raises(StorageUnavailable, match="reads back differently"):
        places.parse("hdfs://h:1/tms", None).put(NAME, b"jar")


def test_without_a_command_the_address_of_webhdfs_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError) as raised:
        places.parse("hdfs://h:1/tms", None)
    assert "--webhdfs" in raised.value.details["next"]
    for url in ("h:9870", "ftp://h", "http://h/path"):
        with pytest.raises(ConfigError, match="--webhdfs"):
            places.parse("hdfs://h:1/tms", url)


# --- HDFS over HTTP ------------------------------------------------------------------------------


class _NameNode(BaseHTTPRequestHandler):
    """WebHDFS in memory. It redirects reads and writes to itself, in place of a data node."""

    files: dict[str, bytes]
    calls: list[str]

    def do_GET(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        self._answer()

    def _answer(self) -> None:
        parts = urlsplit(self.path)
        path = unquote(parts.path).removeprefix("/webhdfs/v1")
        asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.calls.append(f"{self.command} {asked['op']}")
        assert asked["user.name"] == "ann"
        if path.startswith("/forbidden"):
            text = b'{"RemoteException": {"message": "Permission denied: user=ann\\n at x"}}'
            return self._say(403, text)
        match asked["op"]:
            case "OPEN" if path not in self.files:
                self._say(404, b"{}")
            case "CREATE" | "OPEN" if "there" not in asked:
                self._say(307, location=f"http://{self.headers['Host']}{self.path}&there=1")
            case "OPEN":
                self._say(200, self.files[path])
            case "CREATE":
                self.files[path] = content
                self._say(201)
            case "RENAME":
                assert asked["renameoptions"] == "OVERWRITE"
                self.files[asked["destination"]] = self.files.pop(path)
                self._say(200)
            case "MKDIRS":
                self._say(200, b'{"boolean": true}')

    def _say(self, code: int, content: bytes = b"", location: str | None = None) -> None:
        self.send_response(code)
        if location is not None:
            self.send_header("Location", location)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@pytest.fixture
def namenode(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadingHTTPServer]:
    """A name node; `files` and `calls` are those of its handler."""
    monkeypatch.setenv("HADOOP_USER_NAME", "ann")
    _NameNode.files, _NameNode.calls = {}, []
    with ThreadingHTTPServer(("127.0.0.1", 0), _NameNode) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_jar_is_put_into_hdfs_over_http(namenode: ThreadingHTTPServer) -> None:
    url = f"http://127.0.0.1:{namenode.server_port}"
    place = places.parse("hdfs:///tms jars", url)
    assert place.put(NAME, b"jar") is True
    assert _NameNode.files == {f"/tms jars/{NAME}": b"jar"}
    assert place.put(NAME, b"jar") is False
    assert place.put(NAME, b"other") is True
    assert _NameNode.files == {f"/tms jars/{NAME}": b"other"}
    assert _NameNode.calls[:7] == [
        "GET OPEN",
        "PUT MKDIRS",
        "PUT CREATE",  # the name node answers with the address
        "PUT CREATE",
        "PUT RENAME",
        "GET OPEN",  # read back
        "GET OPEN",
    ]


def test_what_hdfs_refuses_over_http_is_told(namenode: ThreadingHTTPServer) -> None:
    url = f"http://127.0.0.1:{namenode.server_port}"
    with pytest.raises(Forbidden, match="ann: Permission denied") as raised:
        places.parse("hdfs://h/forbidden", url).put(NAME, b"jar")
    assert "HADOOP_USER_NAME" in raised.value.details["next"]


def test_a_name_node_that_is_away_is_named(namenode: ThreadingHTTPServer) -> None:
    port = namenode.server_port
    namenode.shutdown()
    namenode.server_close()
    with pytest.raises(StorageUnavailable, match=f"127.0.0.1:{port}"):
        places.parse("hdfs://h/tms", f"http://127.0.0.1:{port}").put(NAME, b"jar")
