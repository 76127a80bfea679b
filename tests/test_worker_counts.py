"""The number of workers changes, but for rounding, nothing that is learnt; the oracle is one worker."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from spark_program import outcome_of


def test_any_number_of_workers_learns_the_same(tmp_path: Path) -> None:
    # 501 rows, which no number of lanes divides.
    generator = np.random.default_rng(7)
    (tmp_path / "rows").mkdir()
    for part, size in enumerate((200, 101, 200)):
        columns = {name: generator.normal(size=size).astype("float32") for name in ("a", "b", "c")}
        label = np.tanh(columns["a"] - columns["b"]) + 0.5 * columns["c"]
        pq.write_table(pa.table({**columns, "label": label}), tmp_path / "rows" / f"part-{part}.parquet")

    outcome = outcome_of("worker_counts.py", tmp_path, data=tmp_path / "rows")

    alone = outcome["1"]
    assert np.abs(np.subtract(alone["weights"], outcome["initial"])).max() > 0.05
    for num_workers in ("2", "3", "4"):
        np.testing.assert_allclose(outcome[num_workers]["weights"], alone["weights"], rtol=0, atol=1e-5)
        np.testing.assert_allclose(outcome[num_workers]["loss"], alone["loss"], rtol=1e-5)
