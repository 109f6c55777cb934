"""Kafka's message definitions, as the front end reads them: made from the jar `kafka-clients`. The
result belongs into `python/tms/compat/kafka/`.

    python -m integration.kafka_messages kafka-clients-4.1.1.jar > definitions.json

The jar has one commented JSON file for each message (Apache License 2.0). The messages of `NAMES`
are kept, without comments and descriptions, one on a line.
"""

import json
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

NAMES = (
    "AddOffsetsToTxn",
    "AddPartitionsToTxn",
    "AlterConfigs",
    "ApiVersions",
    "CreatePartitions",
    "CreateTopics",
    "DeleteGroups",
    "DeleteRecords",
    "DeleteTopics",
    "DescribeAcls",
    "DescribeCluster",
    "DescribeConfigs",
    "DescribeGroups",
    "DescribeLogDirs",
    "DescribeProducers",
    "DescribeTransactions",
    "EndTxn",
    "Fetch",
    "FindCoordinator",
    "Heartbeat",
    "IncrementalAlterConfigs",
    "InitProducerId",
    "JoinGroup",
    "LeaveGroup",
    "ListGroups",
    "ListOffsets",
    "ListPartitionReassignments",
    "ListTransactions",
    "Metadata",
    "OffsetCommit",
    "OffsetDelete",
    "OffsetFetch",
    "OffsetForLeaderEpoch",
    "Produce",
    "SaslAuthenticate",
    "SaslHandshake",
    "SyncGroup",
    "TxnOffsetCommit",
)
_KEPT = ("apiKey", "type", "name", "validVersions", "flexibleVersions", "fields", "commonStructs")
_OF_FIELDS = ("name", "type", "versions", "nullableVersions", "taggedVersions", "tag", "default")
_COMMENT = re.compile(r"^\s*//.*$", re.MULTILINE)


def definitions(jar: Path) -> list[dict[str, Any]]:
    """The requests and responses of `NAMES`, in the order of their names."""
    found = []
    with zipfile.ZipFile(jar) as files:
        for name in NAMES:
            for kind in ("Request", "Response"):
                text = files.read(f"common/message/{name}{kind}.json").decode()
                whole = json.loads(_COMMENT.sub("", text))
                kept = {key: whole[key] for key in _KEPT if key in whole}
                for part in ("fields", "commonStructs"):
                    if part in kept:
                        kept[part] = [_field(one) for one in kept[part]]
                found.append(kept)
    return found


def _field(field: dict[str, Any]) -> dict[str, Any]:
    kept = {key: field[key] for key in _OF_FIELDS if key in field}
    if "fields" in field:
        kept["fields"] = [_field(one) for one in field["fields"]]
    return kept


def text_of(found: list[dict[str, Any]]) -> str:
    """The text of the file: a list with one message a line."""
    lines = ",\n".join(json.dumps(one, separators=(",", ":")) for one in found)
    return f"[\n{lines}\n]\n"


if __name__ == "__main__":
    sys.stdout.write(text_of(definitions(Path(sys.argv[1]))))
