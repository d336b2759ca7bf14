#!/bin/sh
# Runs a command without its output, and says what it does and how far it is: progress.sh TEXT COMMAND...
# On a terminal one line is written anew every second, elsewhere there is one every 30 seconds. What the
# command wrote comes only when it fails. Of a build, the object files that are done are counted.
set -u
text=$1
shift
log=$(mktemp)
trap 'rm -f "$log"' EXIT
trap 'kill "$pid" 2>/dev/null; echo; exit 130' INT TERM
began=$(date +%s)

compiled() {
    total=$(cat build/*/build.ninja 2>/dev/null | grep -c '^build .*\.o:')
    done=$(find build -name '*.o' 2>/dev/null | wc -l)
    [ "$total" -gt 0 ] && [ "$done" -lt "$total" ] && echo ", $done of $total files compiled"
}

if [ -t 1 ]; then every=1 start='\r\033[K' end=''; else every=30 start='' end='\n'; echo "$text ..."; fi
"$@" >"$log" 2>&1 &
pid=$!
seconds=0
while kill -0 "$pid" 2>/dev/null; do
    if [ $((seconds % every)) -eq 0 ] && { [ -t 1 ] || [ "$seconds" -gt 0 ]; }; then
        printf "$start%s ... %d s%s$end" "$text" "$(($(date +%s) - began))" "$(compiled)"
    fi
    sleep 1
    seconds=$((seconds + 1))
done
wait "$pid"
code=$?
[ -t 1 ] && printf "$start"
if [ "$code" -ne 0 ]; then
    cat "$log" >&2
    echo "$text: failed (exit status $code); the lines above say why" >&2
    exit "$code"
fi
echo "$text: done in $(($(date +%s) - began)) s"
