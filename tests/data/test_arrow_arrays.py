"""Arrays go between NumPy and Arrow as they are, and nothing is imported for it that is not needed."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from sparsegroup.data import SyntheticConfig, synthetic_log
from sparsegroup.data.local_files import arrow_of

READ = """
import sys
from sparsegroup.data import SyntheticConfig, open_log, synthetic_log
from sparsegroup_paper.public_shapes import DATASETS, synthetic_batches
log = open_log({path!r})
print(sum(len(batch) for batch in log.batches(0, 6, 2)))
next(synthetic_batches(DATASETS["avazu"], 10, 0))
print([name for name in sys.modules if name in ("pandas", "pyarrow.compute")])
"""


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float32])
@pytest.mark.parametrize("step", [1, 2])
def test_values_and_dtypes_stay(dtype: type, step: int) -> None:
    values = np.arange(10, dtype=dtype)[::step]
    array = arrow_of(values)
    assert array.equals(pa.array(values))


def test_a_text_is_read_without_pandas_and_what_arrow_computes_with(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    lines = [f"{i % 2},{i % 3},x{i % 4}|y,{i / 7}" for i in range(40)]
    path.write_text("\n".join(["clicked,ad,tags,price", *lines]) + "\n")
    script = READ.format(path=str(path))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "6\n[]\n"


def test_the_features_that_a_log_in_memory_has_seen_are_those_of_its_training_rows() -> None:
    log = synthetic_log(SyntheticConfig(rows=500), 0)
    expected = np.unique(log.keys[: log.train_rows])
    np.testing.assert_array_equal(np.sort(log.seen), expected)
    assert log.features == len(expected) < len(np.unique(log.keys))
