#!/bin/sh
# Runs the image as a cluster would, without a container runtime: try.sh [TAG] [PORT]. Its root is mounted
# read-only, the user is 65532, and only /var/lib/tidemill and /tmp are written. Asks one question. As root.
set -eu
tag=${1:-tidemill:latest}
port=${2:-8123}
export BUILDAH_ISOLATION="${BUILDAH_ISOLATION:-chroot}" STORAGE_DRIVER="${STORAGE_DRIVER:-vfs}"

container=$(buildah from --pull-never "$tag")
state=$(mktemp -d)
trap 'kill $(cat "$state/pid") 2> /dev/null || true; wait; buildah rm "$container" > /dev/null; rm -rf "$state"' EXIT
root=$(buildah mount "$container")
mkdir -p "$state/data"
chown 65532:65532 "$state" "$state/data"

cat > "$state/inside" << 'END'
root=$1 state=$2 port=$3
mount --bind "$root" "$root" && mount -o remount,ro,bind "$root"
mount --bind "$state/data" "$root/var/lib/tidemill"
mount -t tmpfs tmpfs "$root/tmp"
mount --bind /proc "$root/proc"
mount --bind /dev "$root/dev"
echo $$ > "$state/pid"
exec env -i LANG=C.UTF-8 HOME=/home/tidemill TIDEMILL_HOME=/var/lib/tidemill TIDEMILL_API_KEY=0123456789abcdef \
    TIDEMILL_PACKED_CACHE=/var/lib/tidemill/packed \
    /usr/sbin/chroot --userspec=65532:65532 "$root" /usr/local/bin/tidemill serve --host 0.0.0.0 --port "$port"
END
unshare -m sh "$state/inside" "$root" "$state" "$port" &

for _ in $(seq 120); do
    sleep 0.5
    if curl -sf "http://127.0.0.1:$port/readyz" > /dev/null; then break; fi
done
curl -sf "http://127.0.0.1:$port/v1/chat/completions" -H 'Authorization: Bearer 0123456789abcdef' \
    -H 'Content-Type: application/json' -d '{"messages": [{"role": "user", "content": "Who are you?"}]}' | grep brook
printf '\nread-only, as user 65532: answered; %s\n' "$(buildah images --format '{{.Size}}' "$tag")"
