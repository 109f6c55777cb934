"""TEMPORARY"""
import itertools
from tms.compat.kafka import codec
VERSIONS = (0, 5)
_n = itertools.count(1)
R = codec.class_of("InitProducerIdResponse")
async def answer(call):
    return R(producer_id=next(_n), producer_epoch=0)
