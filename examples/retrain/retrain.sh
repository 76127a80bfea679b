#!/usr/bin/env bash
# Submits Retrain.scala to a local Spark of two cores; its arguments stand there. SPARK_SUBMIT names another Spark.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
make --directory="$root" --no-print-directory build/jvm/.examples

exec "$root/.ci/with-tools" "${SPARK_SUBMIT:-$root/.venv/bin/spark-submit}" \
    --master 'local[2]' \
    --jars "$(echo "$root"/build/jvm/libs/flambeau-spark4_2.13-*[0-9].jar),$(echo "$root"/build/jvm/libs/flambeau-natives-*.jar)" \
    --class flambeau.examples.Retrain \
    "$root/build/jvm/libs/flambeau-examples.jar" "$@"
