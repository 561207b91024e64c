"""A disk that is full: what there is stays, the error says which file, and nothing of what was begun counts."""

import errno

import pytest

from checkpoint_cases import bits, clicks, fresh_facts, unchanged
from full_disk import FullDisk
from over import over
from sparsegroup.checkpoint import Checkpoints


@over("whole", [False, True])
def test_full_at_every_operation(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    """The training is unchanged by a save that fails, and the next one writes what this one has not."""
    training, disk = clicks(), FullDisk(monkeypatch)
    checkpoints = Checkpoints(tmp_path_factory.mktemp("disk") / "checkpoints", keep=1)
    training.step()
    first = checkpoints.save(1, training.model, training.optimizers)
    expected = bits(training.facts())
    training.step()
    now = bits(training.facts())
    for allowed in range(100):
        disk.left = allowed
        error = None
        try:
            with unchanged(training):
                saved = checkpoints.save(2, training.model, training.optimizers, whole=whole)
        except OSError as raised:
            error = raised
        disk.left = float("inf")
        if error is None:
            break
        assert error.errno == errno.ENOSPC
        assert str(error.filename).startswith(str(checkpoints.folder))
        if checkpoints.paths() != [first]:  # full when all was written
            assert fresh_facts(checkpoints.folder / "step-000000000002") == now
            saved = checkpoints.save(3, training.model, training.optimizers)
            break
        assert checkpoints.latest() == first
        assert not checkpoints.skipped
        assert list(checkpoints.folder.iterdir()) == [first]
        assert fresh_facts(first) == expected
    assert allowed > 10
    assert fresh_facts(saved) == now
    assert checkpoints.latest() == saved
