"""A web application on FastAPI: it publishes posted orders, and shows published ones.

    tms serve --data data
    uvicorn --app-dir examples --factory fastapi_orders:service

One bus serves all requests, on the event loop of the application. A request is answered when its
order is stored. While the service is down the answer is 503, and the client may try again. With an
`Idempotency-Key`, an order that was stored although its answer was lost is not stored twice.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fastapi import FastAPI, Header, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel

import tms
import tms.aio
from tms.errors import WrongLastId
from tms.serializers import Pydantic

TOPIC = "orders"


class Order(BaseModel):
    """The body of a posted order."""

    customer: str
    total: int


ORDERS = Pydantic(Order)


def application(open_bus: Callable[[], tms.aio.AsyncBus]) -> FastAPI:
    """The application on the bus that `open_bus` makes; a test gives one in memory."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with open_bus() as bus:
            await bus.create_topic(TOPIC, partitions=4)
            app.state.bus = bus
            yield

    app = FastAPI(lifespan=lifespan)

    @app.exception_handler(tms.TMSError)
    async def failed(request: Request, error: tms.TMSError) -> Response:
        status = 503 if error.retriable else 500
        return JSONResponse({"code": error.code, "detail": error.message}, status)

    @app.post("/orders", status_code=201)
    async def publish(
        order: Order, request: Request, idempotency_key: str = Header("")
    ) -> dict[str, str]:
        bus: tms.aio.AsyncBus = request.app.state.bus
        if not idempotency_key:
            id = await bus.publish(TOPIC, ORDERS.encode(order), key=order.customer.encode())
            return {"id": str(id)}
        try:  # only the first order with this key
            key = idempotency_key.encode()
            id = await bus.publish(TOPIC, ORDERS.encode(order), key=key, expect="nothing")
        except WrongLastId:
            return {"id": "", "note": "this order is stored already"}
        return {"id": str(id)}

    @app.get("/orders")
    async def orders(request: Request) -> list[Order]:
        bus: tms.aio.AsyncBus = request.app.state.bus
        consumer = bus.consumer(TOPIC, stop_at_end=True, serializer=ORDERS)
        return [message.decoded async for message in consumer]

    return app


def service() -> FastAPI:
    """The application on the service at port 7070, for uvicorn."""
    return application(tms.aio.connect)
