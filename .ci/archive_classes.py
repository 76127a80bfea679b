"""Archive the classes that Spark loads, for the JVMs that tests start: `python .ci/archive_classes.py FILE`.

A JVM that is given the archive (-XX:SharedArchiveFile) finds those classes parsed and verified:
https://docs.oracle.com/en/java/javase/17/vm/class-data-sharing.html. It is of Spark's own class path and of
one JDK; JVMs with others go without it. A session takes 11 s of CPU with it and 19 without.
"""

import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests"))


def main(file: str) -> None:
    """Do what the tests have Spark do, and wait for the JVM, which writes what it has loaded as it ends."""
    # One of an earlier run would hide that there is none of this.
    Path(file).unlink(missing_ok=True)
    options = os.environ.get("JDK_JAVA_OPTIONS", "")
    os.environ["JDK_JAVA_OPTIONS"] = f"{options} -XX:ArchiveClassesAtExit={file} -Xlog:disable"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    import local_session
    from pyspark.ml.feature import VectorAssembler
    from pyspark.ml.regression import LinearRegression

    spark = local_session.session()
    table = [(float(row), 1.0, 2.0) for row in range(100)]
    df = spark.createDataFrame(table, "a double, b double, label double")
    with tempfile.TemporaryDirectory() as directory:
        df.write.parquet(f"{directory}/rows")
        read = spark.read.parquet(f"{directory}/rows")
        rows = VectorAssembler(inputCols=["a", "b"], outputCol="features").transform(read)
        LinearRegression().fit(rows).transform(rows).groupBy("label").count().collect()
        rows.select("a", "b").mapInPandas(lambda frames: frames, "a double, b double").toPandas()
        rows.rdd.barrier().mapPartitions(list).collect()
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    driver = gateway.proc
    spark.stop()
    driver.stdin.close()
    if driver.wait() != 0 or not Path(file).exists():
        sys.exit(f"the driver ended with status {driver.returncode}, and there is no {file}")


if __name__ == "__main__":
    main(sys.argv[1])
