"""The clients speak TLS to a proxy in front of a service."""

import asyncio
import os
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import tms
import tms.aio
from tests.http_kit import serving
from tests.waiting import PATIENCE_S

# For 127.0.0.1, until 2120, self-signed; its key protects nothing.
CERTIFICATE = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg5hFwc0D5Kxsh1vdV
EcSLXLxMkOYh1saYpBfOKW10YSahRANCAAQF57qPIXNjBtnJ+p4LsrQxe8SM44zD
4vJDbJX1x7FXMV59oiazgj1+Nc02Qh2qZhOUR8b7/aG3ZDDXn31zsB8d
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBbDCCARKgAwIBAgIBATAKBggqhkjOPQQDAjAUMRIwEAYDVQQDDAkxMjcuMC4w
LjEwIBcNMjAwMTAxMDAwMDAwWhgPMjEyMDAxMDEwMDAwMDBaMBQxEjAQBgNVBAMM
CTEyNy4wLjAuMTBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABAXnuo8hc2MG2cn6
nguytDF7xIzjjMPi8kNslfXHsVcxXn2iJrOCPX41zTZCHapmE5RHxvv9obdkMNef
fXOwHx2jUzBRMA8GA1UdEwEB/wQFMAMBAf8wDwYDVR0RBAgwBocEfwAAATAdBgNV
HQ4EFgQU9xE+oXuG9l1JZevdYF7jcjVzHeUwDgYDVR0PAQH/BAQDAgKEMAoGCCqG
SM49BAMCA0gAMEUCIB7KENQOLOTfRJFmSe/ocQ2UF6dh/zgPm6cJV+ng1HaqAiEA
njyjCGnKFapzrQcqOnUVNnB20aYiaBkm+CvuOi98WGE=
-----END CERTIFICATE-----
"""
VALUES = [os.urandom(1_000) for _ in range(6_000)]  # more than a socket takes at once


class TlsFront:
    """Ends TLS, and passes the bytes to a port of this machine."""

    def __init__(self, port: int, certificate: Path, key: Path | None = None) -> None:
        self._port = port
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, key)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        opening = asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        self._server = asyncio.run_coroutine_threadsafe(opening, self._loop).result(PATIENCE_S)
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"https://127.0.0.1:{self.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_service = await asyncio.open_connection("127.0.0.1", self._port)
        await asyncio.gather(_pass(reader, to_service[1]), _pass(to_service[0], writer))

    def close(self) -> None:
        async def end() -> None:
            self._server.close()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(PATIENCE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while received := await reader.read(1 << 16):
            writer.write(received)
            await writer.drain()
    writer.close()


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    certificate = tmp_path / "tls.pem"
    certificate.write_text(CERTIFICATE)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with serving() as served:
        front = TlsFront(served.address[1], certificate)
        yield front.url
        front.close()


def test_large_and_small_requests_and_answers_pass_through_tls(url: str) -> None:
    with tms.connect(url) as bus:
        bus.create_topic("t")
        bus.publish("t", b"first")
        bus.publish_many("t", VALUES)
        with bus.producer("t") as producer:
            producer.send_many(VALUES)
        values = [message.value for message in bus.consumer("t", stop_at_end=True)]
    assert values == [b"first", *VALUES, *VALUES]


def test_asyncio_speaks_tls_too(url: str) -> None:
    async def run() -> list[bytes | None]:
        async with asyncio.timeout(60), tms.aio.connect(url) as bus:
            await bus.create_topic("t")
            await bus.publish_many("t", VALUES)
            return [message.value async for message in bus.consumer("t", stop_at_end=True)]

    assert asyncio.run(run()) == VALUES


def test_a_certificate_that_is_not_trusted_is_refused(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    with tms.connect(url) as bus, pytest.raises(tms.errors.ConfigError, match="not trusted"):
        bus.create_topic("t")
