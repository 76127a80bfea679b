#!/usr/bin/env bash
# Builds Horovod's source package into an environment that has what peers/horovod.txt names: horovod.sh DIRECTORY
#
# For PyTorch on Gloo alone. Its CMakeLists asks for C++14, and the headers of torch 2.1 need C++17.
set -euo pipefail

environment=$(realpath "$1")
pip=("$environment/../../../.venv/bin/python" -m pip --quiet --python "$environment/bin/python")
sources=$(mktemp -d)
trap 'rm -rf "$sources"' EXIT

"${pip[@]}" download --no-deps --no-binary :all: --no-build-isolation --dest "$sources" horovod==0.28.1
sha256sum --quiet --check <<<"92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0  $sources/horovod-0.28.1.tar.gz"
tar -xf "$sources/horovod-0.28.1.tar.gz" -C "$sources"
sed -i 's/set(CMAKE_CXX_STANDARD 14)/set(CMAKE_CXX_STANDARD 17)/' "$sources"/horovod-0.28.1/{.,horovod/torch}/CMakeLists.txt
export HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1
PATH=$environment/bin:$PATH "${pip[@]}" install --no-deps --no-build-isolation "$sources/horovod-0.28.1"
"$environment/bin/python" -c 'import horovod.torch as hvd; assert hvd.gloo_built()'
