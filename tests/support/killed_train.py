"""`python -m sparsegroup`, but that ranks kill themselves: `KILLED=where:rank,rank` says where, and which, `BY` how.

Only before torchrun has started them anew. Where: "batch-7", after so many batches; "exchange-7", in that exchange of
vectors or gradients; "save-1", in the writing of the first checkpoint.
"""

import faulthandler
import os
import signal
from typing import Any

from sparsegroup.__main__ import main
from sparsegroup.checkpoint import save
from sparsegroup.table.sharded.exchange import Shards
from sparsegroup.training.trainer import Trainer

WHERE, _, RANKS = os.environ.get("KILLED", "nowhere:").partition(":")
KIND, _, NUMBER = WHERE.partition("-")
COUNTS: dict[str, int] = {}


def reach(kind: str) -> None:
    """Die, if this is the place."""
    if kind == KIND and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        COUNTS[kind] = COUNTS.get(kind, 0) + 1
        if COUNTS[kind] == int(NUMBER) and os.environ["RANK"] in RANKS.split(","):
            os.kill(os.getpid(), signal.Signals[os.environ.get("BY", "SIGKILL")])


def after(of: Any, name: str, kind: str) -> None:
    """Let a function be such a place, in its end."""
    wrapped = getattr(of, name)

    def called(*arguments: Any, **named: Any) -> Any:
        result = wrapped(*arguments, **named)
        reach(kind)
        return result

    setattr(of, name, called)


if __name__ == "__main__":
    after(Trainer, "_step", "batch")
    after(Shards, "carry", "exchange")
    after(save, "_written_tables", "save")
    faulthandler.register(signal.SIGUSR1)
    main()
