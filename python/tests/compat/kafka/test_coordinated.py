"""Questions to the coordinator of transactions."""

import asyncio
from collections.abc import Callable
from threading import Thread
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tms.compat.kafka.coordinated import CoordinatedIds
from tms.model.message import NewBlock
from tms.model.topic import TopicName
from tms.topics.owners import At
from tms.transactions.transactional_state import ProducerEpoch


@pytest.mark.parametrize("reply", [b"no reply", msgspec.msgpack.encode({"refusal": 9_999})])
def test_a_batch_is_answered_whatever_the_coordinator_replies(reply: bytes) -> None:
    def ask(question: Callable[[], None]) -> None:
        Thread(target=question).start()

    route = At(SimpleNamespace(answer_kafka=lambda message: reply))  # type: ignore[arg-type]
    engine = SimpleNamespace(
        roles=SimpleNamespace(commits=SimpleNamespace(route=lambda: route)),
        cluster=SimpleNamespace(ask=ask),
    )
    ids = CoordinatedIds(SimpleNamespace(engine=engine))  # type: ignore[arg-type]

    async def publish() -> Any:
        places = await ids.publish(
            "id", ProducerEpoch(1, 0), TopicName.parse("t"), [NewBlock(0, bytearray(1))]
        )
        return await asyncio.wait_for(places(), 5)

    with pytest.raises((ValueError, msgspec.DecodeError)):
        asyncio.run(publish())
