"""An issuer of JSON Web Tokens for tests: keys, tokens, and a server with its JWKS."""

import hmac
import json
import ssl
import threading
import warnings
from base64 import urlsafe_b64encode
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from joserfc import jws
from joserfc.errors import SecurityWarning
from joserfc.jwk import ECKey, Key, OKPKey, RSAKey

from tests.tls_kit import Certificate
from tests.waiting import PATIENCE_S

ISSUER, AUDIENCE = "https://issuer.example", "tms"
FOREVER_S = 4_000_000_000


def b64(raw: bytes | dict[str, Any]) -> str:
    """Encode a part of a token."""
    text = raw if isinstance(raw, bytes) else json.dumps(raw).encode()
    return urlsafe_b64encode(text).rstrip(b"=").decode()


def key_of(algorithm: str, kid: str | None = "one") -> Key:
    """A new private key for an algorithm."""
    parameters: Any = {} if kid is None else {"kid": kid}
    if algorithm.startswith(("RS", "PS")):
        return RSAKey.generate_key(2_048, parameters)
    if algorithm.startswith("ES"):
        curves = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}
        return ECKey.generate_key(curves[algorithm], parameters)
    return OKPKey.generate_key("Ed25519", parameters)


def jwks(*keys: Key, **more: Any) -> bytes:
    """The document with the public parts of keys, each with `more` members."""
    return json.dumps({"keys": [{**key.as_dict(private=False), **more} for key in keys]}).encode()


def claims(principal: str = "ann", **more: Any) -> dict[str, Any]:
    """The claims of a good token; a None leaves a claim out."""
    said = {"iss": ISSUER, "aud": AUDIENCE, "sub": principal, "exp": FOREVER_S, **more}
    return {name: value for name, value in said.items() if value is not None}


def sign(key: Key, said: dict[str, Any] | bytes, algorithm: str = "ES256", **header: Any) -> str:
    """A token. The header has the key's id unless it is given."""
    fields = {"alg": algorithm, "kid": key.kid, **header}
    fields = {name: value for name, value in fields.items() if value is not None}
    payload = said if isinstance(said, bytes) else json.dumps(said).encode()
    head, body = b64(fields), b64(payload)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SecurityWarning)
        model = jws.JWSRegistry.algorithms[algorithm]
        return f"{head}.{body}.{b64(model.sign(f'{head}.{body}'.encode(), key))}"


def hmac_with(secret: bytes, said: dict[str, Any], kid: str) -> str:
    """A token signed by HS256."""
    signed = f"{b64({'alg': 'HS256', 'kid': kid})}.{b64(said)}"
    return f"{signed}.{b64(hmac.digest(secret, signed.encode(), 'sha256'))}"


class JwksServer:
    """A server on this machine that answers with `document`, or as a test sets."""

    def __init__(self, document: bytes = b'{"keys":[]}') -> None:
        self.document = document
        self.asked: list[str] = []  # paths
        self.answer: Callable[[BaseHTTPRequestHandler], None] = self.send
        self.gone = threading.Event()  # ends answers that wait
        kit = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                kit.asked.append(self.path)
                kit.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                pass  # the service has closed the connection

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/keys"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def send(self, handler: BaseHTTPRequestHandler) -> None:
        """Send the document."""
        handler.send_response(200)
        handler.send_header("content-length", str(len(self.document)))
        handler.end_headers()
        handler.wfile.write(self.document)

    def use_tls(self, certificate: Certificate) -> None:
        """Speak TLS from now on."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate.pair)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = self.url.replace("http://", "https://")

    def raw(self, answer: bytes) -> None:
        """Answer with these bytes from now on."""
        self.answer = lambda handler: (handler.wfile.write(answer), None)[1]

    def hang(self, _: BaseHTTPRequestHandler) -> None:
        """Send no answer."""
        self.gone.wait(PATIENCE_S)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.gone.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(PATIENCE_S)
