"""franz-go's own tests that need a broker, compiled from its module, on a running service."""

import os
import re
import subprocess

import pytest

from integration.kafka_clients.install import franz_go_tests
from integration.kafka_clients.programs import FranzGo
from integration.kafka_clients.service import KafkaService
from tests.waiting import busily

pytestmark = pytest.mark.long
TEST_S = 180.0
ETL_S = 300.0
RECORDS = 2_000
PASSING = (
    "TestAddRemovePartitions",
    "TestClient_Produce",
    "TestClient_ProduceLargeMessages",
    "TestConsumeTopicRetrieval",
    "TestConsumeTopicRetrieval_Many",
    "TestDirectPartitionPurge",
    "TestGroupSimple",
    "TestHookPollStart",
    "TestIssue1034",
    "TestIssue325",
    "TestIssue337",
    "TestIssue434",
    "TestIssue523",
    "TestIssue648",
    "TestIssue769",
    "TestIssue810",
    "TestIssue831",
    "TestIssue865",
    "TestIssueProduceSyncManualPartitionNegativeDoesNotPanic",
    "TestPauseIssue489",
    "TestPauseIssueOct2023",
    "TestPing",
    "TestUnknownGroupOffsetFetchPinned",
)
ETL = ("TestGroupETL", "TestTxnEtl")  # groups of each assignor, and the same in transactions
FAILING = {  # with the words of the failure
    # TMS keeps committed offsets elsewhere: there is no internal topic.
    "TestConsumeRegex": "topic __consumer_offsets is not in metadata",
    # Messages are at most 8 MiB.
    "TestIssueFetchLargerThanBrokerMaxReadBytes": "INVALID_CONFIG",
    # Batches are sent without compression.
    "TestConsumeMaxDecompressBatchBytes": "want ErrDecompressTooLarge",
    "TestPooling": "did not put decompress!",
}
SKIPPING = {  # themselves, for what the service does not speak; with their words
    "Test848RegexBrokerResolves": "does not support KIP-848",
    "TestConsumeRegexShareSkipsInternal": "does not support share groups",
    "TestIssueProduceBrokerTooOldFailsRecords": "still takes produce v2",
    "TestShareGroup": "does not support share groups",
    "TestShareGroupAckOnClose": "does not support share groups",
    "TestShareGroupETL": "does not support share groups",
    "TestShareGroupOffsetsAdmin": "does not support share groups",
}


@pytest.fixture(scope="module")
def client() -> FranzGo:
    return FranzGo()


def outcome(service: KafkaService, name: str, seconds: float = TEST_S) -> tuple[str, str]:
    """`PASS`, `FAIL` or `SKIP`, and the output of a test."""
    program = franz_go_tests()
    settings = {"KGO_SEEDS": service.servers, "KGO_TEST_RF": "1", "KGO_LOG_LEVEL": "none"}
    limit = busily(seconds)
    done = subprocess.run(
        [program, "-test.v", "-test.run", f"^{name}$", "-test.timeout", f"{limit:.0f}s"],
        cwd=program.parent / "pkg" / "kgo",
        env={**os.environ, **settings, "KGO_TEST_RECORDS": str(RECORDS)},
        capture_output=True,
        text=True,
        timeout=limit + 30,
    )
    told = done.stdout + done.stderr
    found = re.search(rf"^--- (PASS|FAIL|SKIP): {name} ", told, re.MULTILINE)
    return ("FAIL" if found is None or done.returncode else found[1]), told


@pytest.mark.parametrize("name", PASSING)
def test_a_test_of_franz_go_passes(service: KafkaService, name: str) -> None:
    how, told = outcome(service, name)
    assert how == "PASS", told[-8_000:]


@pytest.mark.timeout(2 * ETL_S + 60)
@pytest.mark.parametrize("name", ETL)
def test_the_etl_tests_of_franz_go_pass(service: KafkaService, name: str) -> None:
    how, told = outcome(service, name, ETL_S)
    assert how == "PASS", told[-8_000:]


@pytest.mark.parametrize("name", FAILING)
def test_a_test_of_franz_go_fails_for_a_known_reason(service: KafkaService, name: str) -> None:
    how, told = outcome(service, name)
    assert how == "FAIL" and FAILING[name] in told, told[-8_000:]


@pytest.mark.parametrize("name", SKIPPING)
def test_a_test_of_franz_go_skips_itself(service: KafkaService, name: str) -> None:
    how, told = outcome(service, name)
    assert how == "SKIP" and SKIPPING[name] in told, told[-8_000:]


def test_every_test_of_franz_go_that_needs_a_broker_has_its_place() -> None:
    needing = set()
    for path in (franz_go_tests().parent / "pkg" / "kgo").glob("*_test.go"):
        for found in re.finditer(r"^func (Test\w+)\(.*?^}", path.read_text(), re.M | re.S):
            if re.search(r"\b(newTestClient|tmpTopic|getSeedBrokers)", found[0]):
                needing.add(found[1])
    assert sorted([*PASSING, *ETL, *FAILING, *SKIPPING]) == sorted(needing)
