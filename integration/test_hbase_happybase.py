"""Other programs read the tables with happybase, without settings: by default the table shows
committed blocks, and they need code of TMS only to decode blocks."""

import happybase

import tms
from integration import coprocessor
from integration.cluster import Endpoint
from integration.install import install
from tests.faults.service import within
from tms.block import decode, encode
from tms.client.client import Bus
from tms.model.message import NewBlock
from tms.model.topic import TopicName

WAIT_S = 60
MESSAGES = {b"plain", b"committed", b"open"}


def test_happybase_sees_committed_messages_only(hbase: Endpoint, hbase_namespace: str) -> None:
    url = hbase.url(hbase_namespace)
    install(url, coprocessor.build(), isolation="committed")
    connection = happybase.Connection("127.0.0.1", hbase.thrift1_port())

    def seen() -> set[bytes]:
        table = connection.table(f"{hbase_namespace}:messages")
        blocks = [b"".join(cells[name] for name in sorted(cells)) for _, cells in table.scan()]
        return MESSAGES & {value for block in blocks for value in decode(block).values() if value}

    def settled() -> bool:
        try:
            return b"committed" in seen()
        except happybase.hbase.Hbase_thrift.IOError:  # the region has read no image yet
            return False

    engine = tms.open_engine(url)
    with Bus(engine) as bus:
        bus.create_topic("t")
        bus.publish("t", b"plain")
        with bus.transaction() as tx:
            tx.send("t", b"committed")
        block = NewBlock(0, encode([b"open"]))
        id = engine.transactions.begin(timeout_s=600).transaction_id
        engine.transactions.submit(TopicName("default", "t"), [block], id).result(10)
        uncommitted = bus.consumer("t", stop_at_end=True, isolation="uncommitted")
        assert {message.value for message in uncommitted} == MESSAGES
        within(WAIT_S, settled)
        assert seen() == {b"plain", b"committed"}
