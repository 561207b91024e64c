"""The compiled step gives the same bits on any number of threads, and in a forked process; torch in helpers."""

import ctypes
import os
import sys
import threading
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from compiled_step_cases import REGULARIZED, build, give_gradient, parameter_of, tensors_of
from distributed_cases import in_a_new_process
from optimizer_cases import KINDS, assert_identical
from sparsegroup import GroupAdam, GroupOptimizer
from sparsegroup.kernels.cpu.threads import in_turns, set_num_threads
from table_cases import threads


@pytest.mark.parametrize(
    ("shape", "classes"), [((9001, 11), KINDS), ((9, 20_000), [GroupAdam]), ((100_003,), KINDS)], ids=str
)
def test_one_and_two_threads_give_the_same_bits(
    shape: tuple[int, ...], classes: Sequence[type[GroupOptimizer]]
) -> None:
    def run(cls: type[GroupOptimizer], count: int) -> list[dict[str, Tensor]]:
        xs = [parameter_of(*shape, dtype=torch.float32), parameter_of(5, 5), parameter_of(*shape, dtype=torch.float32)]
        optimizer = build(cls, xs, **REGULARIZED)
        with threads(count):
            for t in range(2):
                for x in xs[:2]:
                    give_gradient(optimizer, x, t)
                give_gradient(optimizer, xs[2], t, list(range(1, 9)) if len(shape) == 2 else None)
                optimizer.step()
        return [tensors_of(optimizer, x) for x in xs]

    for cls in classes:
        assert_identical(run(cls, 2), run(cls, 1))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.whole
def test_a_forked_process_steps_with_threads_of_its_own() -> None:
    in_a_new_process(
        """
        import os
        import torch
        from sparsegroup import GroupAdam

        torch.set_num_threads(2)
        x = torch.nn.Parameter(torch.ones(1 << 16, 8))
        x.grad = torch.ones_like(x)
        optimizer = GroupAdam([x], lr=0.1, l21=1e-3)
        optimizer.step()
        child = os.fork()
        if child == 0:
            optimizer.step()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        """
    )


def threads_of_openmp() -> int:
    """How many threads the operations of the calling one share."""
    with open("/proc/self/maps") as maps:
        library = next(line.split()[-1] for line in maps if "libgomp" in line and "torch" in line)  # others have theirs
    return int(ctypes.CDLL(library).omp_get_max_threads())


@pytest.mark.skipif(sys.platform != "linux", reason="OpenMP's library is found by the process's maps")
def test_torch_has_as_many_threads_in_a_helper_as_in_its_caller() -> None:
    """OpenMP's number is a thread's own, and one that is new has as many as the machine has cores."""
    meeting, found, count = threading.Barrier(5), [0] * 5, 5

    def job(number: int) -> None:
        meeting.wait(30)  # each has a thread of its own
        found[number] = threads_of_openmp()

    set_num_threads(count)
    try:
        with threads(3):
            in_turns(job, count)
    finally:
        set_num_threads(None)
    assert found == [3] * count
