"""Interrupts reach the processes that tests start."""

import signal


def heed() -> None:
    """A shell that runs the tests in the background may ignore interrupts, and so would every
    process that they start."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
