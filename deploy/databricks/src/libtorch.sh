#!/bin/bash
# Init script of a cluster: unpacks the archive LIBTORCH_ARCHIVE, of a volume, to LIBTORCH on the machine's own disk. Both are
# among the cluster's environment variables, and LIBTORCH is where Flambeau looks. The script lies in a volume itself, or
# Databricks lets it read none.
set -euo pipefail
: "${LIBTORCH:?names the directory to unpack to}" "${LIBTORCH_ARCHIVE:?names the archive of libtorch to unpack}"

beside=$(mktemp -d "$(dirname "$LIBTORCH")/libtorch-XXXXXX")
trap 'rm -rf "$beside"' EXIT
python3 -m zipfile -e "$LIBTORCH_ARCHIVE" "$beside"
version=$(cat "$beside/libtorch/build-version")
case $version in
    2.13.*) ;;
    *) echo "$LIBTORCH_ARCHIVE is libtorch $version, and Flambeau needs 2.13" >&2; exit 1 ;;
esac
# mktemp's directory is root's alone; what is moved out of it is everyone's to read.
rm -rf "$LIBTORCH"
mv "$beside/libtorch" "$LIBTORCH"
