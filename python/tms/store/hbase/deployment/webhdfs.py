"""Files of HDFS over HTTP (WebHDFS), for a machine without Hadoop.

    GET  /webhdfs/v1/PATH?op=OPEN             → where to read from (a data node)
    PUT  /webhdfs/v1/DIRECTORY?op=MKDIRS
    PUT  /webhdfs/v1/PATH?op=CREATE           → where to send the bytes
    PUT  /webhdfs/v1/PATH?op=RENAME&renameoptions=OVERWRITE

Invariants

* Every step has a deadline.
* A file is written under another name first, then renamed.
"""

import getpass
import http.client
import json
import os
import re
import uuid
from http import HTTPStatus
from pathlib import PurePosixPath
from typing import NamedTuple
from urllib.parse import quote, urlencode, urlsplit

from tms.errors import ConfigError, Forbidden, StorageUnavailable, TMSError

CALL_S = 30.0
CONTENT_BYTES_MAX = 64 << 20
_URL = re.compile(r"https?://[A-Za-z0-9.\[\]:_-]+/?", re.ASCII)


class _HdfsResponse(NamedTuple):
    code: int
    location: str | None
    content: bytes


class WebHDFS:
    """The file system behind the HTTP address of a name node."""

    def __init__(self, url: str) -> None:
        if not _URL.fullmatch(url):
            raise ConfigError(
                f"--webhdfs is http://HOST:PORT of a name node (port 9870); got {url!r}.",
                next="`hdfs getconf -confKey dfs.namenode.http-address` names it where Hadoop is",
            )
        self._url = url.rstrip("/")
        self._user = os.environ.get("HADOOP_USER_NAME") or getpass.getuser()

    def read(self, path: str) -> bytes | None:
        """The content of a file; None when it is not there."""
        answer = self._call("GET", path, "OPEN")
        if answer.location is not None:
            answer = self._send("GET", answer.location, b"")
        if answer.code == HTTPStatus.NOT_FOUND:
            return None
        return self._checked(answer, path).content

    def write(self, path: str, content: bytes) -> None:
        """Make a file, and its directory; whole or not at all."""
        directory = PurePosixPath(path).parent
        new = str(directory / f".{PurePosixPath(path).name}.{uuid.uuid4().hex[:8]}")
        self._checked(self._call("PUT", str(directory), "MKDIRS"), str(directory))
        answer = self._call("PUT", new, "CREATE", overwrite="true", permission="644")
        if answer.location is None:
            raise self._refused(answer, path)
        self._checked(self._send("PUT", answer.location, content), path)
        self._checked(
            self._call("PUT", new, "RENAME", destination=path, renameoptions="OVERWRITE"), path
        )

    def _call(self, method: str, path: str, operation: str, **more: str) -> _HdfsResponse:
        query = urlencode({"op": operation, "user.name": self._user, **more})
        return self._send(method, f"{self._url}/webhdfs/v1{quote(path)}?{query}", b"")

    def _send(self, method: str, url: str, content: bytes) -> _HdfsResponse:
        parts = urlsplit(url)
        kind = (
            http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        )
        try:
            connection = kind(parts.hostname or "", parts.port, timeout=CALL_S)
            try:
                headers = {"Content-Type": "application/octet-stream"} if content else {}
                connection.request(method, f"{parts.path}?{parts.query}", content, headers)
                answer = connection.getresponse()
                received = answer.read(CONTENT_BYTES_MAX + 1)
                return _HdfsResponse(answer.status, answer.getheader("Location"), received)
            finally:
                connection.close()
        except (OSError, http.client.HTTPException, ValueError) as exc:
            raise StorageUnavailable(
                f"HDFS cannot be reached at {parts.scheme}://{parts.netloc}: {exc}.",
                next="see whether --webhdfs is the HTTP address of a name node that is up, and its "
                "data nodes can be reached from here by their names",
            ) from exc

    def _checked(self, answer: _HdfsResponse, path: str) -> _HdfsResponse:
        if answer.code not in (HTTPStatus.OK, HTTPStatus.CREATED):
            raise self._refused(answer, path)
        return answer

    def _refused(self, answer: _HdfsResponse, path: str) -> TMSError:
        try:
            said = json.loads(answer.content)["RemoteException"]["message"].splitlines()[0]
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            said = f"HTTP {answer.code}"
        denied = answer.code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
        kind: type[TMSError] = Forbidden if denied else StorageUnavailable
        return kind(
            f"HDFS refuses {path} for the user {self._user}: {said}",
            next="HADOOP_USER_NAME names another user; a cluster with Kerberos needs the command "
            "`hdfs` on the path instead of --webhdfs",
        )
