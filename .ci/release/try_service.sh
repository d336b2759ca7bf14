#!/usr/bin/env bash
# The service as systemd runs it: try_service.sh WHEEL [ROOT]. Boots a Debian in a container (mmdebstrap,
# systemd-nspawn; root), installs the wheel in /opt/tidemill and the service by `tidemill install-service`,
# and tries: readiness, an answer, a restart under requests that none of them notices, a reload, an engine
# that is killed, a wrong flag that is not tried again, and the exposure by systemd-analyze.
set -euo pipefail
wheel=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
if [ -n "${2:-}" ]; then
  cp -a "$2" "$root"
else
  mmdebstrap --quiet --variant=minbase --include=systemd,systemd-sysv,dbus,python3,python3-venv,procps bookworm "$root"
fi
mkdir -p "$root/wheels"
cp "$wheel" "$root/wheels"
python3 -m pip download -q --disable-pip-version-check -d "$root/wheels" "$wheel"
cat > "$root/try.sh" << 'INSIDE'
#!/bin/bash
set -euxo pipefail
[ -x /opt/tidemill/bin/python ] || python3 -m venv /opt/tidemill
/opt/tidemill/bin/pip install -q --no-index --find-links /wheels tidemill
if [ -d /overlay ]; then cp -r /overlay/. /opt/tidemill/lib/python3*/site-packages/tidemill/; fi
# As on a machine that is up: the units may wait for the network.
systemctl start network-online.target
/opt/tidemill/bin/tidemill install-service --now --listen 127.0.0.1:8123 -- brook --drain-timeout 30
systemctl is-active tidemill.service tidemill.socket
cat > /ask.py << 'PYTHON'
import json, sys, threading, time, urllib.request
url, seconds = "http://127.0.0.1:8123/v1/chat/completions", float(sys.argv[1])
body = json.dumps({"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0})
good, bad, end = [], [], time.time() + seconds
def ask():
    while time.time() < end:
        try:
            request = urllib.request.Request(url, body.encode(), {"Content-Type": "application/json"})
            answer = json.load(urllib.request.urlopen(request, timeout=60))
            good.append("Paris" in answer["choices"][0]["message"]["content"])
        except Exception as error:
            bad.append(repr(error))
threads = [threading.Thread(target=ask) for _ in range(3)]
[one.start() for one in threads]
[one.join() for one in threads]
print(len(good), "answered", len(bad), "failed", bad[:3], flush=True)
sys.exit(bool(bad or not all(good) or not good))
PYTHON
python3 /ask.py 1
python3 /ask.py 12 & asking=$!
sleep 2
before=$(systemctl show -P MainPID tidemill)
systemctl restart tidemill
[ "$before" != "$(systemctl show -P MainPID tidemill)" ]
wait "$asking"
main=$(systemctl show -P MainPID tidemill)
systemctl reload tidemill
sleep 1
python3 /ask.py 1
[ "$main" = "$(systemctl show -P MainPID tidemill)" ]
pkill -KILL -P "$main"
sleep 3
[ "$main" = "$(systemctl show -P MainPID tidemill)" ]
python3 /ask.py 1
stat -c '%U %a %n' /var/lib/private/tidemill /etc/tidemill/environment
systemd-analyze security tidemill.service | tail -1
# Through socket activation alone.
systemctl stop tidemill.service
python3 /ask.py 1
systemctl is-active tidemill.service
echo TIDEMILL_THREADS=none >> /etc/tidemill/environment
systemctl restart tidemill.service || true
sleep 4
[ "$(systemctl show -P ExecMainStatus tidemill) $(systemctl show -P NRestarts tidemill)" = "2 0" ]
sed -i /THREADS/d /etc/tidemill/environment
systemctl reset-failed tidemill.service tidemill.socket || true
/opt/tidemill/bin/tidemill install-service --remove
[ ! -e /etc/systemd/system/tidemill.service ]
echo all of it > /result
INSIDE
cat > "$root/etc/systemd/system/try.service" << 'UNIT'
[Unit]
After=multi-user.target
[Service]
Type=oneshot
ExecStart=/bin/bash -c 'bash /try.sh > /log 2>&1 || { systemctl status tidemill; journalctl -u tidemill --no-pager | tail -40; } >> /log 2>&1; systemctl poweroff'
UNIT
mkdir -p "$root/etc/systemd/system/default.target.wants"
ln -sf ../try.service "$root/etc/systemd/system/default.target.wants/try.service"
[ -z "${OVERLAY:-}" ] || cp -r "$OVERLAY" "$root/overlay"
timeout 300 "${NSPAWN:-systemd-nspawn}" -q -D "$root" --register=no --keep-unit --private-network --boot > "$work/boot" 2>&1 || { tail -20 "$work/boot"; exit 1; }
if [ -n "${VERBOSE:-}" ]; then cat "$root/log"; else grep -v "^+" "$root/log"; fi
cat "$root/result"
