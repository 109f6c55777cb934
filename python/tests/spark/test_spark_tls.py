"""Spark's reader and writer at a service over TLS that requests certificates, without a Spark."""

import pickle
from contextlib import closing
from pathlib import Path

import tms
from tests.http_kit import serving
from tests.tls_kit import Authority
from tms.model.position import Position
from tms.runtime.tls import ServerTls
from tms.spark.source.options import read_options
from tms.spark.source.reader import open_topics


def test_a_reader_shows_its_certificate_also_where_it_was_sent(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own = authority.sign("spark")
    with serving(tls=ServerTls(*authority.sign().pair, str(authority.ca))) as served:
        url = "https://{}:{}".format(*served.address)
        with tms.connect(url, ca=authority.ca, cert=own.pair) as bus:
            bus.create_topic("t", partitions=2)
            bus.publish_many("t", [b"x"] * 10, partition=1)
        options = {
            "subscribe": "t",
            "tms.url": url,
            "tms.tls.ca": str(authority.ca),
            "tms.tls.cert": str(own.cert),
            "tms.tls.key": str(own.key),
        }
        with closing(open_topics(read_options(options).place)) as topics:
            assert topics.offsets("default:t", Position.latest()) == {0: 0, 1: 10}
            sent = pickle.loads(pickle.dumps(topics))
        with closing(sent):
            assert sent.offsets("default:t", Position.latest()) == {0: 0, 1: 10}
