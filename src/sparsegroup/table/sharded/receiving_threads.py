"""The threads in which gloo receives, beside the one that computes.

Such a thread asks for its connection's lock again and again while another one, which sends, has it. Where both share a
core and the system gives it to the receiver, nothing is sent until its time slice ends, 3 or 4 ms later. So it is told
not to interrupt anybody: `SCHED_BATCH`, see sched(7). On a core that is free it begins as soon as before.
"""

import os
from contextlib import suppress
from pathlib import Path

_NAME = "gloo_tcp_loop"


def schedule_receivers(policy: int | None = None) -> int:
    """Schedule the receiving threads of all of gloo's groups in this process.

    Args:
        policy: One of the system's for ordinary threads; None: `os.SCHED_BATCH`, by which they interrupt nobody.

    Returns:
        How many threads follow it now: none where the system does not tell a process's threads (not Linux), or does
        not let it.
    """
    count = 0
    with suppress(AttributeError, OSError):
        chosen = os.SCHED_BATCH if policy is None else policy
        for thread in Path("/proc/self/task").iterdir():
            if (thread / "comm").read_text().startswith(_NAME):
                os.sched_setscheduler(int(thread.name), chosen, os.sched_param(0))
                count += 1
    return count
