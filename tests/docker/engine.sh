#!/usr/bin/env bash
# engine.sh start DIR   prints the DOCKER_HOST of an engine: one that answers already, or else one of its own,
#                       whose data lies in DIR. Exit code 69, with the reason, where none can be had.
# engine.sh stop DIR    stops that one; any other engine is left alone.
set -euo pipefail

action=${1:?start or stop}
directory=$(mkdir -p "${2:?a directory}" && cd "$2" && pwd)
# A socket's path has 108 characters at most, and DIR may lie deep.
socket=/tmp/trcomp-engine-$(printf %s "$directory" | sha256sum | cut -c1-12).sock
pidfile=$directory/dockerd.pid

answers() { curl --fail --silent --max-time 5 --unix-socket "$1" http://engine/_ping >/dev/null 2>&1; }

fail() { echo "No container engine: $*" >&2; exit 69; }

running() { [ -e "$pidfile" ] && [ "$(cat "/proc/$(cat "$pidfile")/comm" 2>/dev/null)" = dockerd ]; }

install() {
    command -v apt-get >/dev/null || fail "dockerd is not installed, and there is no apt-get."
    { apt-get update && apt-get install --yes --no-install-recommends docker.io; } \
        >"$directory/apt.log" 2>&1 || fail "apt-get could not install docker.io; see $directory/apt.log."
}

start() {
    if [ -n "${DOCKER_HOST:-}" ]; then echo "$DOCKER_HOST"; return; fi
    if answers /var/run/docker.sock; then echo unix:///var/run/docker.sock; return; fi
    if ! answers "$socket"; then
        [ "$(id -u)" = 0 ] || fail "it takes root to start one; start yours, or set DOCKER_HOST."
        command -v dockerd >/dev/null || DEBIAN_FRONTEND=noninteractive install
        # Left behind by an engine that was killed, they would keep the next one from starting.
        running || rm -f "$pidfile" "$directory/exec/containerd/containerd.pid"
        # Within a container or a tunnel, packets of the usual size may not get out.
        device=$(awk '$2 == "00000000" { print $1; exit }' /proc/net/route)
        mtu=$(cat "/sys/class/net/${device:-lo}/mtu")
        setsid nohup dockerd --mtu "$((mtu < 1500 ? mtu : 1500))" --host "unix://$socket" --pidfile "$pidfile" --data-root "$directory/data" \
            --exec-root "$directory/exec" >"$directory/dockerd.log" 2>&1 </dev/null &
        dockerd=$!
        for _ in $(seq 300); do
            { answers "$socket" || ! kill -0 "$dockerd" 2>/dev/null; } && break
            sleep 0.1
        done
        answers "$socket" || fail "dockerd did not start: $(tail -n 1 "$directory/dockerd.log")"
    fi
    echo "unix://$socket"
}

stop() {
    running || return 0
    pid=$(cat "$pidfile")
    kill "$pid"
    while [ -e "/proc/$pid" ]; do sleep 0.1; done
    # One that was killed before leaves its data directory mounted on itself.
    awk -v below="$directory/" 'index($2, below) == 1 { print $2 }' /proc/mounts | sort -r | xargs -r umount
}

"$action"
