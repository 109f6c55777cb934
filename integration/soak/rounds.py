"""One round: from its plan to its findings.

    embedded load ─▶ service, proxy, jobs, faults ─▶ jobs end ─▶ groups and queues are drained,
    delayed messages have come ─▶ readers ─▶ service restarts, readers again ─▶ service ends,
    readers of the directory ─▶ verdict

Every process is started here and ended here, by its id.
"""

import json
import multiprocessing
import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, replace
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import tms
from integration.soak.checker.history import Finding, History
from integration.soak.checker.verdict import judge
from integration.soak.faults import Lossy
from integration.soak.ledger import DONE, REFUSED, UNKNOWN, Ledger, lines
from integration.soak.load import foreign, jobs
from integration.soak.plan import Fault, Plan, job
from integration.soak.readers import passes
from integration.soak.serving import Serving

JOB_S, READ_S, QUIET_S = 180, 600, 60  # for a busy machine
READERS = "readers-"
_SLOWER = 4  # a job that makes progress may take so many times as long
COPIED = 500  # messages in a batch of Spark
Say = Callable[[str], None]
# Every job is a process of its own; its modules are imported before the fork.
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["integration.soak.load.jobs", "integration.soak.readers.passes"])


class Round:
    """One round in a directory of its own; `spark`: with the readers and the copy that need a JVM.
    With `store` an HBase takes the place of the data directory, with its `zookeeper` if Spark's
    connector is to read it."""

    def __init__(
        self,
        plan: Plan,
        directory: Path,
        say: Say,
        spark: bool = False,
        store: str = "",
        zookeeper: str = "",
    ) -> None:
        if not spark:
            plan = replace(
                plan, topics={t: o for t, o in plan.topics.items() if "copy_of" not in o}
            )
        self._plan = plan
        self._zookeeper = zookeeper
        self._directory = directory
        self._say = say
        self._spark = spark
        self._data: Path | str = store or directory / "data"
        self._ledgers = directory / "ledgers"
        self._ledgers.mkdir(parents=True)
        self._ledger = Ledger(self._ledgers / "round.ledger", "round")
        self._service = Serving(self._data, plan, self._ledger, zookeeper)
        self._jobs: dict[str, ForkServerProcess] = {}

    @property
    def findings(self) -> Path:
        """The directory of ledgers and readings."""
        return self._ledgers

    def run(self) -> list[Finding]:
        """Run the round; returns its findings."""
        plan = self._plan
        (self._ledgers / "plan.json").write_text(json.dumps(asdict(plan), indent=1))
        self._write_topics()
        try:
            if not isinstance(self._data, str):
                self._embedded()
            self._service.start()
            self._create()
            self._load()
            self._quiet()
            if self._spark:
                self._copy()
            self._read("online")
            self._service.stop()
            self._service.start()
            if self._spark:
                self._read("spark")
            self._service.stop()
            self._read("offline")
            if self._spark and self._zookeeper:
                self._read("connector")
        finally:
            self._end_all()
        self._say(self._size())
        return judge(self._ledgers)

    def clean(self) -> None:
        """Remove the data; ledgers and readings stay."""
        if not isinstance(self._data, str):
            shutil.rmtree(self._data, ignore_errors=True)

    @property
    def _url(self) -> str:
        return ",".join(self._service.urls)

    def _create(self) -> None:
        with tms.connect(self._url) as bus:
            for name, of in self._plan.topics.items():
                bus.create_topic(name, **of["settings"])
            for queue, settings in self._plan.queues.items():
                topic, _, group = queue.partition("/")
                bus.queue(topic, group=group, **settings)

    # -- load --------------------------------------------------------------------------------------

    def _embedded(self) -> None:
        """Run a program that has the directory for itself, and kill it or not."""
        options = {**self._plan.embedded, "data": str(self._data)}
        began = time.monotonic()
        self._begin("embedded", "emb", "", options)
        if options["kill_after_s"]:
            self._jobs["emb"].join(options["kill_after_s"])
            self._kill("emb")
        else:
            self._wait(JOB_S)
        self._say(f"embedded load took {time.monotonic() - began:.0f} s")

    def _load(self) -> None:
        plan = self._plan
        with ExitStack() as stack:
            proxy = Lossy(self._service.urls[0], f"{plan.name}/proxy", plan.lossy, self._note_loss)
            stack.enter_context(proxy)
            for kind, name, lossy, options in plan.jobs:
                self._begin(kind, name, proxy.url if lossy else self._url, options)
            began = time.monotonic()
            for fault in plan.faults:
                time.sleep(max(0.0, began + fault.at_s - time.monotonic()))
                self._inflict(fault, proxy)
            time.sleep(max(0.0, began + plan.load_s - time.monotonic()))
            (self._ledgers / "stop").touch()
            self._wait(JOB_S)
        (self._ledgers / "stop").unlink()
        self._say("the load has ended")

    def _begin(self, kind: str, name: str, url: str, options: dict[str, Any]) -> None:
        made = job(self._plan, kind, name, url, str(self._ledgers), options)
        self._fork(name, jobs.run, made)

    def _fork(self, name: str, work: Callable[..., object], task: object) -> None:
        process = _FORKS.Process(target=jobs.logged, args=(self._path(name), work, task))
        process.start()
        self._jobs[name] = process

    def _note_loss(self, what: str, request: str) -> None:
        self._ledger.note("lossy", what=what, request=request)

    def _inflict(self, fault: Fault, proxy: Lossy) -> None:
        self._ledger.note("fault", what=fault.what, seconds=fault.seconds, of=fault.of)
        if fault.what == "cut":
            proxy.end_connections()
        elif fault.what == "kill-job":
            self._kill_job(fault.of)
        else:
            self._service.inflict(fault)

    def _kill_job(self, share: float) -> None:
        """Kill one of the jobs; another takes its place, with a name of its own."""
        at = int(share * len(self._plan.jobs))
        kind, name, _, options = self._plan.jobs[at]
        running = next((known for known in self._jobs if known.split("~")[0] == name), None)
        if running is None or not self._jobs[running].is_alive():
            return
        self._kill(running)
        incarnation = len(list(self._ledgers.glob(f"{name}~*.log"))) + 1
        self._begin(kind, f"{name}~{incarnation}", self._url, options)

    # -- quiet -------------------------------------------------------------------------------------

    def _quiet(self) -> None:
        """End abandoned foreign transactions, drain groups and queues, and wait for due
        messages."""
        with tms.connect(self._url) as bus:
            self._until_nobody_is_held(bus)
        for name, of in self._plan.groups.items():
            options = {"group": name, "session_s": 2.0, "drain": True, **of}
            self._begin("group", f"drain-{name}", self._url, options)
        for name in self._plan.queues:
            topic, _, group = name.partition("/")
            options = {"topic": topic, "group": group, "drain": True}
            self._begin("queue", f"drain-{group}", self._url, options)
        self._wait(JOB_S)
        with tms.connect(self._url) as bus:
            for topic, of in self._plan.topics.items():
                if of.get("delayed"):
                    self._until_delivered(bus, topic)

    def _until_nobody_is_held(self, bus: tms.Bus) -> None:
        """End, as an operator does, the transactions that clients of CDAP's protocol have
        abandoned."""
        deadline = time.monotonic() + QUIET_S
        while held := [info for info in bus.admin.transactions.open() if info.held]:
            if time.monotonic() > deadline:
                self._ledger.wrong(f"readers are still held: {held}")
                return
            for info in held:
                foreign.invalidate(bus, info.transaction_id)

    def _until_delivered(self, bus: tms.Bus, topic: str) -> None:
        deadline = time.monotonic() + QUIET_S
        while True:
            due = bus.describe_delayed(topic).next_due_ms
            if due is None or due > (time.time() + 60) * 1_000:
                return
            if time.monotonic() > deadline:
                self._ledger.wrong(f"{topic}: what was due at {due} ms is not delivered")
                return
            time.sleep(0.1)

    def _copy(self) -> None:
        """Copy a topic with Spark; its driver is killed now and then, and started again."""
        for topic, of in self._plan.topics.items():
            if "copy_of" not in of:
                continue
            options = {"topic": of["copy_of"], "output": topic, "offsets": COPIED}
            for number, seconds in enumerate((*self._plan.copying, None)):
                name = f"copy{number}"
                self._begin("stream", name, self._url, options)
                self._jobs[name].join(seconds or READ_S)
                if seconds is not None and self._jobs[name].is_alive():
                    self._ledger.note("killed", what=name)
                    self._kill(name)
            self._wait(JOB_S)

    # -- reading -----------------------------------------------------------------------------------

    def _read(self, what: str) -> None:
        began = time.monotonic()
        task = {
            "directory": str(self._ledgers),
            "url": self._url,
            "topics": json.loads((self._ledgers / "topics.json").read_text()),
            "seed": self._plan.name,
            "pass": what,
            "data": str(self._data),
            "zookeeper": self._zookeeper,
        }
        self._fork(f"{READERS}{what}", passes.PASSES[what], task)
        self._wait(READ_S)
        self._say(f"readers {what} took {time.monotonic() - began:.0f} s")

    def _write_topics(self) -> None:
        """Write the topics for the readers, with the facts that the checker needs."""
        topics: dict[str, dict[str, Any]] = {}
        for name, of in self._plan.topics.items():
            if of.get("expiring"):
                continue
            settings = of["settings"]
            topics[name] = {
                **{field: value for field, value in of.items() if field != "settings"},
                "compacted": "compact" in settings.get("cleanup", ""),
                "retention_bytes": settings.get("retention_bytes"),
                "skew_ms": abs(self._plan.skew_s) * 1_000,
                "queues": {},
                "groups": {},
            }
        for name, of in self._plan.groups.items():
            topics[of["topic"]]["groups"][name] = of
        for queue, settings in self._plan.queues.items():
            topic, _, group = queue.partition("/")
            topics[topic]["queues"][group] = settings
            dead = {"partitions": topics[topic]["partitions"], "dead": True}
            topics[f"{topic}-{group}-dead"] = dead
        (self._ledgers / "topics.json").write_text(json.dumps(topics))

    def _size(self) -> str:
        """The size of the round, in words."""
        history = History(lines(self._ledgers))
        counts = Counter({DONE: 0, REFUSED: 0, UNKNOWN: 0})
        for sent in history.sent.values():
            counts.update(one.op.how for one in sent.values())
        faults = Counter(str(event["what"]) for event in history.events["fault"])
        told = ", ".join(f"{count} {how}" for how, count in counts.items())
        kept = ""
        if not isinstance(self._data, str):
            files = (path for path in self._data.rglob("*") if path.is_file())
            kept = f"; {sum(path.stat().st_size for path in files) >> 20} MiB"
        return f"messages: {told}{kept}; faults: {dict(faults)}"

    # -- processes ---------------------------------------------------------------------------------

    def _wait(self, seconds: float) -> None:
        """Wait until all jobs have ended; jobs that do not are findings, and are killed. A job that
        has noted something in this time is slow, and may take `_SLOWER` times as long."""
        began = time.monotonic()
        for name, process in list(self._jobs.items()):
            process.join(max(0.0, began + seconds - time.monotonic()))
            while process.exitcode is None and time.monotonic() < began + _SLOWER * seconds:
                if self._silent_s(name) > seconds:
                    break
                process.join(1.0)
            if process.exitcode is None and process.pid is not None:
                os.kill(process.pid, signal.SIGUSR1)  # its log shows its stack traces
                time.sleep(0.5)
                self._kill(name)
                self._ledger.wrong(
                    f"{name} hung for {time.monotonic() - began:.0f} s; its log: {self._log(name)}"
                )
                continue
            if process.exitcode != 0:
                self._ledger.wrong(f"{name} ended with {process.exitcode}: {self._log(name)}")
            del self._jobs[name]

    def _silent_s(self, name: str) -> float:
        """The time since a job's last note, or since the last reading of a pass of readers, which
        has all processors to itself; infinite without any."""
        noted = {self._ledgers / f"{name}.ledger"}
        if name.startswith(READERS):
            noted |= {*self._ledgers.glob("*.reading")}
        return time.time() - max(
            (path.stat().st_mtime for path in noted if path.exists()), default=0.0
        )

    def _kill(self, name: str) -> None:
        process = self._jobs.pop(name)
        process.kill()
        process.join()

    def _path(self, name: str) -> Path:
        return self._ledgers / f"{name}.log"

    def _log(self, name: str) -> str:
        path = self._path(name)
        return path.read_text(errors="replace")[-1_500:] if path.exists() else ""

    def _end_all(self) -> None:
        for name in list(self._jobs):
            self._kill(name)
        self._service.close()
