#!/bin/sh
# Builds the image without a daemon: build.sh WHEEL [TAG]. Needs Debian's buildah, and mmdebstrap where the
# base image cannot be pulled: a minimal Debian is then made in its place. IMAGE_ARGS goes to buildah.
set -eu
cd "$(dirname "$0")/../.."
wheel=${1:?build.sh WHEEL [TAG]: which wheel (make wheel builds one)}
tag=${2:-tidemill:latest}
debian=${DEBIAN:-trixie}
base=docker.io/library/debian:$debian-slim
if [ "$(id -u)" = 0 ]; then export BUILDAH_ISOLATION="${BUILDAH_ISOLATION:-chroot}"; fi
# a filesystem that is itself an overlay (in a container) has no second one on it
export STORAGE_DRIVER="${STORAGE_DRIVER:-vfs}"

if ! buildah inspect --type image "$base" > /dev/null 2>&1 && ! buildah pull -q "$base" > /dev/null 2>&1; then
    echo "$base cannot be pulled: making it with mmdebstrap"
    rootfs=$(mktemp --suffix .tar)
    trap 'rm -f "$rootfs"' EXIT
    mmdebstrap --quiet --variant=minbase "$debian" "$rootfs"
    container=$(buildah from scratch)
    buildah add -q "$container" "$rootfs" / > /dev/null
    buildah commit -q --rm "$container" "$base" > /dev/null
fi
# shellcheck disable=SC2086  # several arguments
buildah bud -f deploy/containers/Containerfile --pull-never --format docker -t "$tag" \
    --build-arg "WHEEL=$wheel" --build-arg "DEBIAN=$debian" ${IMAGE_ARGS:-} .
buildah images "$tag"
