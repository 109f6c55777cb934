"""Property testing by simulation: the events of a run (`history`), the rules that every history
must satisfy (`checker`), and a world in one thread whose every step, fault, crash and bound comes
from a seed (`simulation`, `bounds`).

    python -m sim SEED      replays one run exactly and prints the findings
"""
