"""Instances see each other through a real ZooKeeper: while they come, go, drain, are killed or
paused."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from integration.cluster import ZooKeeper
from tests.client.test_client_tls import TlsFront
from tests.tls_kit import Authority
from tms.cluster.membership import InstanceRecord, MembershipState
from tms.cluster.zookeeper import Ensemble, ZooKeeperMember, addresses
from tms.errors import Unavailable
from tms.runtime.tls import ClientTls

SESSION_S = 1.0
WAIT_S = 20.0


class Watched:
    """An instance, and the changes of which it was told."""

    def __init__(self, url: str, id: str, tls: ClientTls | None = None) -> None:
        ensemble = Ensemble.parse(url)
        record = InstanceRecord(id, f"http://{id}", "1")
        self.membership = ZooKeeperMember(
            lambda: ensemble.session(SESSION_S, tls), ensemble.folder, record
        )
        self.changed = threading.Condition()
        self.states: list[MembershipState] = []
        self.numbers: list[int] = []

    def join(self) -> "Watched":
        self.membership.join(self._note)
        return self

    def _note(self) -> None:
        with self.changed:
            self.states.append(self.membership.state)
            self.numbers.append(self.membership.view.number)
            self.changed.notify_all()

    def sees(self) -> list[str]:
        return [f"{record.id}{'!' * record.draining}" for record in self.membership.view.instances]

    def until(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, WAIT_S), (self.states, self.sees())


@pytest.fixture
def joined(
    zookeeper: ZooKeeper, request: pytest.FixtureRequest
) -> Iterator[Callable[[str], Watched]]:
    made: list[Watched] = []

    def join(id: str) -> Watched:
        url = f"zookeeper://{zookeeper.address}/tms/{request.node.name}"
        made.append(Watched(url, id).join())
        return made[-1]

    yield join
    for one in made:
        one.membership.leave()


def test_every_instance_sees_others_join_drain_and_leave(joined: Callable[[str], Watched]) -> None:
    a = joined("a")
    a.until(lambda: a.sees() == ["a"])
    b = joined("b")
    for each in (a, b):
        each.until(lambda each=each: each.sees() == ["a", "b"])
    b.membership.show(msgspec.structs.replace(b.membership.record, draining=True))
    a.until(lambda: a.sees() == ["a", "b!"])
    b.until(lambda: b.membership.view == a.membership.view)
    b.membership.leave()
    a.until(lambda: a.sees() == ["a"])
    assert a.numbers == sorted(a.numbers) and a.membership.state is MembershipState.MEMBER
    assert b.membership.state is MembershipState.LOST


def test_an_instance_that_is_killed_is_gone_after_its_session(
    joined: Callable[[str], Watched], zookeeper: ZooKeeper, request: pytest.FixtureRequest
) -> None:
    a = joined("a")
    with other_process(zookeeper, request.node.name) as child:
        a.until(lambda: a.sees() == ["a", "b"])
        child.kill()
        began_s = time.monotonic()
        a.until(lambda: a.sees() == ["a"])
        assert time.monotonic() - began_s < SESSION_S + 3


def test_an_instance_that_was_paused_too_long_comes_back_with_a_new_session(
    joined: Callable[[str], Watched], zookeeper: ZooKeeper, request: pytest.FixtureRequest
) -> None:
    a = joined("a")
    with other_process(zookeeper, request.node.name) as child:
        a.until(lambda: a.sees() == ["a", "b"])
        child.send_signal(signal.SIGSTOP)
        a.until(lambda: a.sees() == ["a"])
        child.send_signal(signal.SIGCONT)
        a.until(lambda: a.sees() == ["a", "b"])


def test_while_zookeeper_is_away_an_instance_is_suspended_and_then_a_member_again(
    tmp_path: Path,
) -> None:
    with ZooKeeper(tmp_path / "own") as server:
        a = Watched(f"zookeeper://{server.address}/tms", "a").join()
        try:
            a.until(lambda: a.sees() == ["a"])
            number = a.membership.view.number
            server.process.kill()
            a.until(lambda: a.membership.state is not MembershipState.MEMBER)
            assert a.states[-1] in (MembershipState.SUSPENDED, MembershipState.LOST)
            assert a.sees() == ["a"]  # the last seen members
            server.start()
            a.until(lambda: a.membership.state is MembershipState.MEMBER and a.sees() == ["a"])
            assert a.membership.view.number >= number
        finally:
            a.membership.leave()


def test_without_the_password_nobody_may_look(zookeeper: ZooKeeper) -> None:
    url = f"zookeeper://tms:secret@{zookeeper.address}/guarded"
    a = Watched(url, "a").join()
    try:
        a.until(lambda: a.sees() == ["a"])
        stranger = Watched(url.replace("tms:secret@", ""), "b").join()
        try:
            other = Watched(url, "c").join()
            try:
                a.until(lambda: a.sees() == ["a", "c"])
                assert stranger.sees() == [] and not stranger.states
            finally:
                other.membership.leave()
        finally:
            stranger.membership.leave()
    finally:
        a.membership.leave()


class other_process:
    """An instance `b` in a process of its own, which can be killed or paused."""

    def __init__(self, zookeeper: ZooKeeper, name: str) -> None:
        url = f"zookeeper://{zookeeper.address}/tms/{name}"
        self._code = (
            "from integration.test_zookeeper_membership import Watched\n"
            "import threading\n"
            f"Watched({url!r}, 'b').join()\n"
            "threading.Event().wait()\n"
        )

    def __enter__(self) -> subprocess.Popen[bytes]:
        root = Path(__file__).resolve().parents[1]
        environment = {**os.environ, "PYTHONPATH": f"{root}:{root / 'python'}"}
        self._child = subprocess.Popen([sys.executable, "-c", self._code], env=environment)
        return self._child

    def __exit__(self, *_: object) -> None:
        self._child.kill()
        self._child.wait(10)


def test_instances_see_one_another_over_tls_and_trust_no_other_ca(
    zookeeper: ZooKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, strange = Authority(tmp_path, "own"), Authority(tmp_path, "strange")
    made = authority.sign()
    front = TlsFront(int(zookeeper.address.rpartition(":")[2]), made.cert, made.key)
    url, seen = f"zookeepers://127.0.0.1:{front.port}/encrypted", []
    try:
        tls = ClientTls(str(authority.ca))
        seen = [Watched(url, id, tls).join() for id in "ab"]
        for one in seen:
            one.until(lambda one=one: one.sees() == ["a", "b"])
        assert addresses(Ensemble.parse(url), tls) == ["http://a", "http://b"]
        monkeypatch.setattr("tms.cluster.zookeeper.SESSION_S", SESSION_S)  # it tries for so long
        with pytest.raises(Unavailable):
            addresses(Ensemble.parse(url), ClientTls(str(strange.ca)))
        with pytest.raises(Unavailable):  # of another name
            wrong = url.replace("127.0.0.1", "127.0.0.2")
            addresses(Ensemble.parse(wrong), tls)
    finally:
        for one in seen:
            one.membership.leave()
        front.close()
