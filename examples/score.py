"""Score a Parquet file with a saved pipeline. Nothing of the program that trained the pipeline is needed.

python examples/score.py PIPELINE INPUT OUTPUT
"""

import os
import sys

from pyspark.sql import SparkSession

import flambeau


def main() -> None:
    """Write the rows of INPUT with their prediction to OUTPUT."""
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    pipeline, source, target = sys.argv[1:]
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    rows = spark.read.parquet(source)
    scored = flambeau.load_pipeline(pipeline).transform(rows)
    scored.select(*rows.columns, "prediction").write.mode("overwrite").parquet(target)
    spark.stop()


if __name__ == "__main__":
    main()
