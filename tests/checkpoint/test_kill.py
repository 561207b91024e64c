"""A run that is killed at any moment and resumed ends with the same bits as one that is not."""

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kill_runs import Driver, Scene
from run_folders import state_of

Prepare = Callable[[Driver, Path], list[object]]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    driver = Driver(tmp_path_factory.mktemp("driver"))
    yield driver
    driver.close()


def click_log(path: Path, rows: int, first: int = 0) -> Path:
    """A log whose later batches bring many more features than the first one of 40 rows."""
    lines = ["label,color,size,price"]
    for i in range(first, first + rows):
        lines.append(f"{int(i % 7 in (1, 3))},c{i % 7},s{i * i % (5 if i < 40 else 59)},{i % 5}")
    path.write_text("\n".join(lines) + "\n")
    return path


SMALL: list[object] = ["--batch-size", 40, "--checkpoint-steps", 1, "--keep-checkpoints", 1, "--lr", 0.05]
SMALL += ["--l21", 0.02, "--dim", 4, "--set", "model.hidden=[8]", "--threads", 1]


def a_new_run(driver: Driver, before: Path) -> list[object]:
    click_log(before / "log.csv", 120)
    return ["train", "log.csv", "--out", "run", *SMALL]


def one_that_takes_the_place_of_another(driver: Driver, before: Path) -> list[object]:
    click_log(before / "log.csv", 120)
    made = driver.run(before, "train", "log.csv", "--out", "run", *SMALL, "--seed", 5)
    assert made.code == 0, made.output
    return ["train", "log.csv", "--out", "run", *SMALL, "--overwrite"]


def one_that_goes_on_with_another_optimizer(driver: Driver, before: Path) -> list[object]:
    click_log(before / "day0.csv", 100)
    click_log(before / "day1.csv", 120, first=100)
    made = driver.run(before, "train", "day0.csv", "--out", "day0", *SMALL, "--model", "opnn", "--test-fraction", 0)
    assert made.code == 0, made.output
    command = ["train", "day1.csv", "--out", "run", "--continue", "day0", "--threads", 1, "--l21", 0.03]
    return [*command, "--optimizer", "adagrad", "--batch-size", 16]


def dropout_and_two_threads(driver: Driver, before: Path) -> list[object]:
    click_log(before / "log.csv", 400)
    network = ["--model", "opnn", "--dim", 3, "--set", "model.hidden=[8]", "--set", "model.dropout=0.3"]
    often = ["--batch-size", 64, "--checkpoint-steps", 2, "--l21", 0.01, "--set", "checkpoint.incremental=false"]
    return ["train", "log.csv", "--out", "run", *network, *often, "--threads", 2]


def look_ups_ahead(driver: Driver, before: Path) -> list[object]:
    """Batches so large that the next one's keys are looked up while a checkpoint is written."""
    options = ["--batch-size", 1_500, "--checkpoint-steps", 1, "--keep-checkpoints", 1]
    small = ["--dim", 2, "--set", "model.hidden=[4]", "--set", "training.windows=2"]
    return ["train", "--rows", 9_000, "--out", "run", *options, *small, "--threads", 2]


def epochs_of_which_the_best_is_kept(driver: Driver, before: Path) -> list[object]:
    click_log(before / "log.csv", 200)
    epochs = ["--epochs", 4, "--validation", 0.2, "--patience", 2, "--shuffle-buffer", 70, "--schedule", "linear"]
    return ["train", "log.csv", "--out", "run", *SMALL, *epochs, "--lr", 0.5, "--l21", 0]


def made(prepare: Prepare, driver: Driver, folder: Path) -> Scene:
    before = folder / "before"
    before.mkdir()
    return Scene.of(driver, before, *prepare(driver, before))


def test_killed_at_every_operation_on_the_disk(tmp_path: Path, driver: Driver) -> None:
    scene = made(a_new_run, driver, tmp_path)
    faults = scene.faults(thorough=False)
    assert len(faults) > 70
    for fault in faults[::12]:  # all of them in `make test-slow`
        scene.check(fault)


def test_killed_while_it_takes_the_place_of_another(tmp_path: Path, driver: Driver) -> None:
    scene = made(one_that_takes_the_place_of_another, driver, tmp_path)
    first = scene.operations.index("os.rename run")
    assert scene.operations.index("os.rename .new-run") > first
    faults = [fault for fault in scene.faults(thorough=False) if fault["at"] >= first]
    for fault in faults[::4]:  # all of them in `make test-slow`
        scene.check(fault)
        assert not [path for path in (tmp_path / "killed").iterdir() if path.name.startswith((".new-", ".old-"))]


def test_killed_at_random_moments_again_and_again(tmp_path: Path, driver: Driver) -> None:
    draw = random.Random(0)
    scene = made(dropout_and_two_threads, driver, tmp_path)
    for _ in range(2):
        scene.check({"kill_after": draw.uniform(0, scene.seconds)}, {"kill_after": draw.uniform(0, scene.seconds)})


@pytest.mark.slow
@pytest.mark.parametrize(
    "prepare",
    [
        a_new_run,
        one_that_takes_the_place_of_another,
        one_that_goes_on_with_another_optimizer,
        dropout_and_two_threads,
        look_ups_ahead,
        epochs_of_which_the_best_is_kept,
    ],
)
def test_killed_in_every_state_of_the_disk_and_at_many_moments(
    tmp_path: Path, driver: Driver, prepare: Prepare
) -> None:
    """Once, or again when it is resumed."""
    draw = random.Random(1)
    scene = made(prepare, driver, tmp_path)
    for number, fault in enumerate(scene.faults(thorough=prepare is a_new_run)):
        at = draw.randrange(len(scene.operations))
        again = [{"at": draw.randrange(at + 1), "how": how} for how in ("middle", "before")]
        scene.check(fault, *(again if number % 2 else []))
    for _ in range(40):
        times = draw.choice([1, 1, 2, 5])
        scene.check(*({"kill_after": draw.uniform(0, scene.seconds)} for _ in range(times)))


@pytest.mark.slow
def test_checkpoints_by_the_clock_change_nothing(tmp_path: Path, driver: Driver) -> None:
    draw = random.Random(3)
    before = tmp_path / "before"
    before.mkdir()
    click_log(before / "log.csv", 400)
    options = [*SMALL, "--checkpoint-steps", 0]
    reference = before.with_name("reference")
    shutil.copytree(before, reference)
    done = driver.run(reference, "train", "log.csv", "--out", "run", *options, "--checkpoint-minutes", 0)
    assert done.code == 0, done.output
    expected = state_of(reference / "run")
    for number in range(20):
        place = before.with_name(f"killed-{number}")
        shutil.copytree(before, place)
        command = ["train", "log.csv", "--out", "run", *options, "--checkpoint-minutes", 1e-4]
        driver.run(place, *command, kill_after=draw.uniform(0.02, done.seconds))
        ended = driver.run(place, "train", "--resume", "run", "--threads", 1)
        if ended.code == 2:
            assert "no run has begun there" in ended.output
            assert driver.run(place, *command).code == 0
        assert state_of(place / "run") == expected
