"""Reads the state of the tables, carries out steps, probes every region.

Invariants

* Steps are carried out in order, each after the one before has certainly ended.
* Every wait has a deadline, and its error names the missing outcome.
"""

import ipaddress
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from threading import Event

import msgspec

from tms.errors import ConfigError, DataCorrupt, StorageUnavailable, TMSError
from tms.runtime.clock import Clock
from tms.runtime.decoding import from_json
from tms.store.hbase.admin import Admin, Probe, Region
from tms.store.hbase.deployment import plan
from tms.store.hbase.deployment.jar_places import JarPlace
from tms.store.hbase.deployment.tables import WATCHED
from tms.store.hbase.rows import METADATA, TABLES

NOTE = "installed"
_POLL_S = 0.25
_NAMED_MAX = 3
_REFUSED = "DoNotRetryIOException: "  # the master refuses a table's description
_ADVICE = " Set hbase.table.sanity.checks"  # HBase's advice to disable the checks; never right


@dataclass(frozen=True, slots=True)
class RegionAnswer:
    """The answer of a region about its coprocessor: a probe, none, or an error instead."""

    region: Region
    probe: Probe | None = None
    error: str | None = None

    @property
    def version(self) -> str | None:
        """The version of its coprocessor; None if it has none, or does not answer."""
        return None if self.probe is None else self.probe.version

    def runs(self, version: str | None) -> bool:
        """True if it runs this version; without a version, True if it has no coprocessor."""
        if self.error is not None or self.version != version:
            return False
        probe = self.probe
        return probe is None or not probe.enabled or probe.metadata_age_ms is not None


class Deployment:
    """A namespace of HBase, and the time to wait for its regions. `say` prints to the user."""

    def __init__(
        self, admin: Admin, clock: Clock, wait_s: float, say: Callable[[str], None]
    ) -> None:
        self.admin = admin
        self._clock = clock
        self._wait_s = wait_s
        self._say = say
        self._made: list[plan.Step] = []

    @property
    def namespace(self) -> str:
        """The namespace of the tables."""
        return self.admin.place.namespace

    def state(self) -> plan.TablesState:
        """The present state of the namespace."""
        exists = self.namespace in self.admin.namespaces()
        tables: dict[str, plan.FoundTable] = {}
        foreign = []
        for name in self.admin.tables():
            if name not in TABLES:
                foreign.append(name)
                continue
            try:
                table = self.admin.table(name)
            except DataCorrupt:  # it lacks the family of TMS
                foreign.append(name)
            else:
                tables[name] = plan.FoundTable(table, self.admin.enabled(name))
        note = self._note() if METADATA in tables and tables[METADATA].enabled else None
        return plan.TablesState(self.namespace, exists, tables, tuple(foreign), note)

    def carry_out(self, steps: Iterable[plan.Step], put_jar: Callable[[], bool]) -> None:
        """Carry out the steps of a plan. `put_jar` copies the jar to the region servers'
        directory."""
        for step in steps:
            self._say(plan.words(step, self.namespace))
            try:
                self._carry_out(step, put_jar)
            except TMSError as error:
                explained = self._explained(error, step)
                if isinstance(step, plan.CreateTable) and explained is not error:
                    self._leave_nothing()
                raise explained from error

    def answers(self, name: str) -> list[RegionAnswer]:
        """The answers of all regions of a table."""
        return [self._answer(region) for region in self.admin.regions(name)]

    def ask(self, name: str, version: str | None) -> None:
        """Wait until every region of a table runs this version of the coprocessor, or none. Raises
        `StorageUnavailable` after the deadline."""
        deadline_s = self._clock.monotonic_s() + self._wait_s
        while True:
            answers = self.answers(name)
            wrong = [one for one in answers if not one.runs(version)]
            if not wrong:
                return
            if self._clock.monotonic_s() >= deadline_s:
                wanted = f"the coprocessor {version}" if version else "no coprocessor"
                regions = f"{len(wrong)} of {len(answers)} regions of {self.namespace}:{name}"
                raise StorageUnavailable(
                    f"{regions} do not answer as {wanted} after {self._wait_s:g} s: "
                    f"{_named(wrong)}.",
                    next="the logs of these region servers say why; `tms hbase status` asks again",
                )
            Event().wait(_POLL_S)

    def require_visible(self, place: JarPlace, shared: bool) -> None:
        """Refuse a directory that servers of HBase may not see: a server that cannot read its
        table's coprocessor stops, and so does the next one that gets its regions. Raises
        `ConfigError`."""
        if not place.local or shared:
            return
        others = [host for host in self.admin.servers() if not _is_this_machine(host)]
        if others:
            raise ConfigError(
                f"HBase runs on other machines ({', '.join(others[:_NAMED_MAX])}), and a region "
                "server that cannot read the jar stops itself.",
                next="name a directory in HDFS; or mount one on every server of HBase at the same "
                "path, and confirm that with --shared",
            )

    # -- parts ---------------------------------------------------------------------------------

    def _carry_out(self, step: plan.Step, put_jar: Callable[[], bool]) -> None:
        admin = self.admin
        match step:
            case plan.PutJar():
                put_jar()
            case plan.CreateNamespace():
                self._made += [step] if admin.create_namespace() else []
            case plan.CreateTable(table, splits):
                self._made += [step] if admin.create_table(table, splits) else []
            case plan.ModifyTable(table):
                admin.modify_table(table)
            case plan.EnableTable(name):
                admin.enable(name)
            case plan.DropTable(name):
                admin.disable(name)
                admin.drop_table(name)
            case plan.DropNamespace():
                admin.drop_namespace()
            case plan.Ask(name, version):
                self.ask(name, version)
            case plan.Note(note):
                admin.set_config(NOTE, msgspec.json.encode(note))

    def _note(self) -> plan.Installed | None:
        raw = self.admin.config(NOTE)
        if raw is None:
            return None
        try:
            return from_json(raw, plan.Installed)
        except msgspec.MsgspecError as exc:
            raise DataCorrupt(
                f"The note !config/{NOTE} in {self.namespace}:{METADATA} cannot be read: {exc}.",
                next="delete that row; `tms hbase install` writes it again",
            ) from exc

    def _answer(self, region: Region) -> RegionAnswer:
        try:
            return RegionAnswer(region, self.admin.probe(region))
        except TMSError as error:
            return RegionAnswer(region, error=error.message)

    def _leave_nothing(self) -> None:
        """Remove the tables that this run created before HBase refused the first coprocessor: all
        are empty."""
        made = [step for step in self._made if isinstance(step, plan.CreateTable)]
        if any(step.table.name in WATCHED for step in made):
            return
        try:
            for step in made:
                self.admin.disable(step.table.name)
                self.admin.drop_table(step.table.name)
            if len(made) < len(self._made) and not self.admin.tables():
                self.admin.drop_namespace()
        except TMSError as error:
            self._say(f"The finished steps stay, and do no harm: {error.message}")

    def _explained(self, error: TMSError, step: plan.Step) -> TMSError:
        if _REFUSED not in error.message or not isinstance(
            step, plan.CreateTable | plan.ModifyTable
        ):
            return error
        said = error.message.partition(_REFUSED)[2].partition(_ADVICE)[0]
        return ConfigError(
            f"HBase refuses the table {self.namespace}:{step.table.name}: {said}.",
            next="see that the jar is a whole one of this TMS, and that HBase's user can read it "
            "at the same path on the master and on every region server",
        )


def regions_of(deployment: Deployment, tables: Sequence[str]) -> dict[str, list[RegionAnswer]]:
    """The answers of all regions of those tables that have a coprocessor and exist, by table."""
    return {name: deployment.answers(name) for name in WATCHED if name in tables}


def _named(answers: Sequence[RegionAnswer]) -> str:
    """Some of these regions, and their faults."""
    texts = [
        f"{one.region.encoded or one.region.start.decode(errors='replace')} on "
        f"{one.region.server} ({_said(one)})"
        for one in answers[:_NAMED_MAX]
    ]
    return "; ".join(texts) + (" …" if len(answers) > _NAMED_MAX else "")


def _said(answer: RegionAnswer) -> str:
    if answer.error is not None or answer.probe is None:
        return answer.error or "no answer"
    return answer.probe.version + (
        ", no metadata read" if answer.probe.metadata_age_ms is None else ""
    )


def _is_this_machine(host: str) -> bool:
    if host in (socket.gethostname(), socket.getfqdn(), "localhost"):
        return True
    try:
        addresses = {info[4][0] for info in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    return all(ipaddress.ip_address(str(one).partition("%")[0]).is_loopback for one in addresses)
