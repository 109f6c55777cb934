"""Each batch is in the topics once, whichever process dies, and whenever: the sink's protocol
without Spark."""

import pytest

from tests.spark_sink_kit import Died, Driver, Fault, Service, some_batches
from tms.errors import Conflict, TimedOut, TransactionEnded
from tms.model.position import Position
from tms.model.transaction import Commit, CommitResult, PositionChange
from tms.spark.sink.fence import BATCH_TIMEOUT_S, Attempt, Job


def clean() -> Service:
    """A service at the end of an undisturbed query."""
    service = Service()
    driver = Driver(service, some_batches())
    driver.run()
    assert driver.lives == 1
    assert service.values() == driver.expected
    return service


CALLS, WRITES = clean().calls, clean().writes


def check(service: Service, twice: bool = False) -> None:
    driver = Driver(service, some_batches(), twice=twice)
    driver.run()
    assert service.values() == driver.expected
    again = Driver(service, some_batches())
    again.run()  # from an old copy of the checkpoint
    assert service.values() == driver.expected


@pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.name.lower())
def test_a_batch_is_there_once_whichever_call_fails(fault: Fault) -> None:
    assert CALLS > 20
    for at in range(1, CALLS + 1):
        check(Service(at, fault))


def test_a_batch_is_there_once_wherever_the_power_goes() -> None:
    assert WRITES > 20
    for write in range(1, WRITES + 1):
        service = Service()
        service.stop_at_write = write
        check(service)


@pytest.mark.parametrize("at", range(5, 40, 7))
def test_of_attempts_that_both_finish_only_one_counts(at: int) -> None:
    check(Service(at, Fault.ANSWER_LOST), twice=True)


def test_a_batch_that_is_done_is_neither_staged_nor_committed_again() -> None:
    service = Service()
    driver = Driver(service, some_batches()[:1])
    driver.run()
    driver.committed = 0
    job = driver.begin()
    attempts = [driver.task(job, rows) for rows in driver.batches[0]]
    assert attempts == [Attempt(job)] * 2
    before = service.writes
    driver.fence(job).commit(attempts)
    assert service.writes == before


def test_a_commit_that_failed_after_it_took_effect_is_not_undone_by_the_abort() -> None:
    service = Service()
    driver = Driver(service, some_batches()[:1])
    job = driver.begin()
    attempts = [driver.task(job, rows) for rows in driver.batches[0]]
    driver.fence(job).commit(attempts)
    driver.fence(job).abort(attempts)
    driver.fence(job).commit(attempts)
    assert service.values() == driver.expected


def test_a_restart_days_later_finds_what_was_committed() -> None:
    service = Service()
    driver = Driver(service, some_batches()[:1])
    driver.run()
    service.clock.pass_ms(3 * 86_400_000)
    service.engine.maintenance.clean()
    service.kill()
    driver.committed = 0
    driver.run()
    assert service.values() == driver.expected


def two_drivers(service: Service) -> tuple[Driver, Driver]:
    return Driver(service, some_batches()[:1]), Driver(service, some_batches()[:1])


def both_staged(one: Driver, other: Driver) -> tuple[list[Job], list[list[Attempt]]]:
    """Of each driver the job that it began, and the staged attempts of its first batch."""
    drivers = one, other
    jobs = [driver.begin() for driver in drivers]
    staged = [
        [driver.task(job, rows) for rows in driver.batches[0]]
        for driver, job in zip(drivers, jobs, strict=True)
    ]
    return jobs, staged


def test_of_two_drivers_with_one_checkpoint_one_wins_and_the_other_is_told() -> None:
    service = Service()
    one, other = two_drivers(service)
    jobs, staged = both_staged(one, other)
    one.fence(jobs[0]).commit(staged[0])
    with pytest.raises(Conflict, match="Another driver has committed batch 0 of the query q"):
        other.fence(jobs[1]).commit(staged[1])
    other.fence(jobs[1]).abort(staged[1])
    assert service.values() == one.expected
    assert service.engine.transactions.open() == []
    other.run()  # the next start finds the batch done
    assert service.values() == one.expected


def test_of_two_drivers_that_commit_at_the_same_moment_one_wins() -> None:
    service = Service()
    one, other = two_drivers(service)
    jobs, staged = both_staged(one, other)
    commit = service.engine.transactions.commit

    def between(*args: object) -> object:
        service.engine.transactions.commit = commit  # type: ignore[method-assign]
        other.fence(jobs[1]).commit(staged[1])
        return commit(*args)  # type: ignore[arg-type]

    service.engine.transactions.commit = between  # type: ignore[assignment,method-assign]
    with pytest.raises(Conflict, match="Another driver has committed"):
        one.fence(jobs[0]).commit(staged[0])
    assert service.values() == one.expected


def test_a_batch_that_takes_too_long_fails_clearly_and_can_be_written_again() -> None:
    service = Service()
    driver = Driver(service, some_batches()[:1])
    job = driver.begin()
    first = driver.task(job, driver.batches[0][0])
    service.clock.pass_ms(int(BATCH_TIMEOUT_S * 1_000) + 1)
    service.engine.transactions.tidy()
    with pytest.raises(TransactionEnded, match="took longer than an hour"):
        driver.fence(job).commit([first])
    second = driver.task(job, driver.batches[0][1])
    with pytest.raises(TransactionEnded, match="took longer than an hour"):
        driver.fence(job).commit([first, second])
    driver.fence(job).abort([first, second])
    assert service.values() == [] and service.engine.transactions.open() == []
    driver.run()
    assert service.values() == driver.expected


def test_a_commit_without_an_answer_reports_an_unknown_outcome() -> None:
    service = Service()
    driver = Driver(service, some_batches()[:1])
    job = driver.begin()
    attempts = [driver.task(job, rows) for rows in driver.batches[0]]

    def silent(*_: object) -> object:
        raise TimedOut("no answer.")

    service.engine.transactions.commit = silent  # type: ignore[assignment,method-assign]
    fence = driver.fence(job)
    fence._timeout_s = 0.01
    with pytest.raises(TimedOut, match="Nobody can tell whether batch 0 of the query q"):
        fence.commit(attempts)


def test_what_an_earlier_run_left_open_hinders_no_later_one() -> None:
    service = Service()
    driver = Driver(service, some_batches()[:1])
    driver.task(driver.begin(), driver.batches[0][0])  # and the driver dies
    driver.run()
    assert service.values() == driver.expected
    assert len(service.engine.transactions.open()) == 1
    service.clock.pass_ms(int(BATCH_TIMEOUT_S * 1_000) + 1)
    service.engine.transactions.tidy()
    assert service.engine.transactions.open() == []
    assert service.values() == driver.expected


def test_a_position_that_somebody_reset_counts_as_none() -> None:
    service = Service()
    driver = Driver(service, some_batches()[:1])
    key = driver.begin().position
    service.engine.groups.move([PositionChange(key, Position.earliest())])
    driver.run()
    assert service.values() == driver.expected
    assert service.engine.groups.positions(key.topic, key.group) == {0: Position.offset(1)}


def test_a_commit_expects_the_position_that_the_batch_before_left() -> None:
    service = Service()
    driver = Driver(service, [some_batches()[0]] * 2)
    commit, expected = service.engine.transactions.commit, []

    def seen(request: Commit, timeout_s: float) -> CommitResult:
        expected.extend(change.expected for change in request.positions)
        return commit(request, timeout_s)

    service.engine.transactions.commit = seen  # type: ignore[method-assign]
    driver.run()
    assert expected == ["", "offset:1"]


# Batch queries


def batch_query(service: Service) -> tuple[Driver, Job]:
    return Driver(service, some_batches()[:1], query=""), Job("of-a-batch-query")


def test_a_batch_query_is_one_transaction_without_a_position() -> None:
    service = Service()
    driver, job = batch_query(service)
    attempts = [driver.task(job, rows) for rows in driver.batches[0]]
    assert len({one.transaction_id for one in attempts}) == 1
    assert service.values() == []
    service.clock.pass_ms(5 * 3_600_000)  # batch queries may take hours
    service.engine.transactions.tidy()
    driver.fence(job).commit(attempts)
    driver.fence(job).commit(attempts)
    assert service.values() == driver.expected
    shards = service.engine.groups._open_shards.parts.values()
    assert not [group for shard in shards for group in shard.positions.groups()]


@pytest.mark.parametrize("told", [0, 1, 2])
def test_an_aborted_batch_query_leaves_nothing_open(told: int) -> None:
    service = Service()
    driver, job = batch_query(service)
    attempts = [driver.task(job, rows) for rows in driver.batches[0]]
    driver.fence(job).abort(attempts[:told])
    assert service.engine.transactions.open() == []
    with pytest.raises(TransactionEnded):
        driver.fence(job).commit(attempts)
    assert service.values() == []


@pytest.mark.parametrize("fault", [Fault.ANSWER_LOST, Fault.SERVICE_KILLED_AFTER])
def test_the_commit_of_a_batch_query_whose_answer_is_lost_is_done_once(fault: Fault) -> None:
    driver, job = batch_query(Service())
    attempts = [driver.task(job, rows) for rows in driver.batches[0]]
    calls = driver.service.calls
    service = Service(calls + 1, fault)
    driver, job = batch_query(service)
    attempts = [driver.task(job, rows) for rows in driver.batches[0]]
    driver.fence(job).commit(attempts)
    assert service.values() == driver.expected


@pytest.mark.parametrize("at", range(1, 6))
def test_a_task_that_dies_leaves_nothing_that_counts(at: int) -> None:
    service = Service(at, Fault.CALLER_DIES_AFTER)
    driver, job = batch_query(service)
    with pytest.raises(Died):
        driver.task(job, driver.batches[0][0])
    attempts = [driver.task(job, rows) for rows in driver.batches[0]]
    driver.fence(job).commit(attempts)
    assert service.values() == driver.expected
