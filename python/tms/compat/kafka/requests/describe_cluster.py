"""DescribeCluster: the brokers."""

from tms.compat.kafka import codec
from tms.compat.kafka.codec import KafkaMessage
from tms.compat.kafka.errors import ErrorCode
from tms.compat.kafka.requests import KafkaCall

VERSIONS = (0, 2)
CONFIRMS = False
DescribeClusterResponse = codec.class_of("DescribeClusterResponse")
_BROKERS = 1  # a type of endpoint; the other one is of controllers
_MISMATCHED_ENDPOINT_TYPE = 114


async def answer(call: KafkaCall) -> KafkaMessage:
    """The id of the cluster, and its brokers."""
    broker = call.broker
    if call.message.endpoint_type != _BROKERS:
        return DescribeClusterResponse(
            error_code=_MISMATCHED_ENDPOINT_TYPE, error_message="There are no controllers here."
        )
    made = DescribeClusterResponse.DescribeClusterBroker
    known = broker.brokers.all()
    return DescribeClusterResponse(
        error_code=ErrorCode.NONE,
        cluster_id=broker.cluster_id,
        controller_id=broker.brokers.controller,
        brokers=[made(broker_id=id, host=host, port=port) for id, host, port in known],
    )
