"""`tms.aio` inside a web application, served on uvicorn's default loop: uvloop."""

import asyncio
import contextlib
import http.client
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

import tms.aio
from tests.asgi_kit import running
from tests.http_kit import serving

TOPIC = "orders"


def application(url: str) -> Starlette:
    """An application that publishes posted values, and lists the published ones."""
    bus = tms.aio.connect(url)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with bus:
            await bus.create_topic(TOPIC, durability="written")
            yield

    async def publish(request: Request) -> Response:
        return PlainTextResponse(str(await bus.publish(TOPIC, await request.body())))

    async def read(request: Request) -> Response:
        consumer = bus.consumer(TOPIC, stop_at_end=True)
        values = [(message.value or b"").decode() async for message in consumer]
        return JSONResponse({"values": values, "loop": type(asyncio.get_running_loop()).__module__})

    routes = [Route("/", publish, methods=["POST"]), Route("/", read, methods=["GET"])]
    return Starlette(routes=routes, lifespan=lifespan)


def test_a_web_application_under_uvicorn_publishes_and_reads() -> None:
    count = 8
    with (
        serving() as served,
        running(application(served.url)) as there,
    ):

        def ask(method: str, body: bytes | None = None) -> bytes:
            connection = http.client.HTTPConnection(*there, timeout=20)
            with contextlib.closing(connection):
                connection.request(method, "/", body)
                return connection.getresponse().read()

        ids = [ask("POST", b"%d" % number) for number in range(count)]
        answer = ask("GET").decode()
        assert len(set(ids)) == count
        assert (
            answer
            == JSONResponse(
                {"values": [str(number) for number in range(count)], "loop": "uvloop"}
            ).body.decode()
        )
