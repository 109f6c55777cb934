"""Facts from the operating system: the machine's name, CPU time, memory, the load by other
processes.

Linux only, as the benchmarks are: everything is read from /proc.
"""

import os
import platform
import resource
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
CORES = os.cpu_count() or 1


def name() -> str:
    """Processor, cores, kernel and Python in one line."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return (
        f"{model}, {CORES} cores, {memory:.0f} GiB, Linux {platform.release()}, "
        f"Python {platform.python_version()}"
    )


def own_cpu_s() -> float:
    """CPU seconds of this process, all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def children_cpu_s() -> float:
    """CPU seconds of the processes that this one has started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def cpu_s(pid: int) -> float:
    """CPU seconds of another process, and of all processes that it started."""
    ticks, parents = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            after_name = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        number = int(stat.parent.name)
        parents[number] = int(after_name[1])
        ticks[number] = sum(map(int, after_name[11:15]))  # its own and its ended children's
    return sum(used for number, used in ticks.items() if _descends(number, pid, parents)) / _TICKS


def _descends(number: int, pid: int, parents: dict[int, int]) -> bool:
    while number != pid and number in parents:
        number = parents[number]
    return number == pid


def busy_s() -> float:
    """CPU seconds that the whole machine has worked, and that its host took away."""
    cells = [int(cell) for cell in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(cells) - cells[3] - cells[4]) / _TICKS


def memory_mib(pid: int) -> dict[str, float]:
    """Resident memory of a process now (`VmRSS`), its maximum (`VmHWM`), and without files
    (`RssAnon`)."""
    found = {}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        field, _, value = line.partition(":")
        if field in ("VmRSS", "VmHWM", "RssAnon"):
            found[field] = int(value.split()[0]) / 1024
    return found


def descriptors(pid: int) -> int:
    """The number of open file descriptors of a process."""
    return len(os.listdir(f"/proc/{pid}/fd"))
