# Debian's Docker engine, started by hand beside anything else on the machine. Sourced by run.sh;
# everything it makes lies under $work, but for the bridge docker0 and iptables' rules, of which there
# is one set on a machine: they are put back as they were.

engine_own= # set once ours runs

engine_install() {
    [ "$(id -u)" = 0 ] || { echo "no Docker engine answers, and only root can start one"; return 1; }
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -yqq --no-install-recommends docker.io mmdebstrap iptables iproute2 >/dev/null
    export DOCKER_CONFIG=$work/docker DOCKER_HOST=unix://$work/docker.sock
    export PATH=/usr/bin:/usr/sbin:$PATH # before another client that wants a newer engine
    mkdir -p "$DOCKER_CONFIG/cli-plugins"
    engine_compose
    docker compose version
}

# Debian 12 has no compose plugin; the next release's is one file that needs nothing newer.
engine_compose() {
    local apt=$work/apt options
    mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
    awk 'BEGIN { RS = "" } NR == 1' /etc/apt/sources.list.d/debian.sources |
        sed 's/^Suites:.*/Suites: trixie/' >"$apt/trixie.sources"
    options=(-qq -o APT::Sandbox::User=root -o "Dir::Etc::sourcelist=$apt/trixie.sources"
        -o Dir::Etc::sourceparts=/dev/null -o "Dir::State::lists=$apt/lists"
        -o "Dir::Cache=$apt/cache")
    apt-get "${options[@]}" update
    (cd "$apt" && apt-get "${options[@]}" download docker-compose && dpkg -x docker-compose_*.deb x)
    cp "$apt/x/usr/libexec/docker/cli-plugins/docker-compose" "$DOCKER_CONFIG/cli-plugins/"
}

engine_up() {
    iptables-save >"$work/iptables" 2>/dev/null || true
    cat /proc/sys/net/ipv4/ip_forward >"$work/ip_forward"
    engine_own=1
    setsid nohup dockerd --data-root "$work/data" --exec-root "$work/exec" \
        --pidfile "$work/dockerd.pid" -H "$DOCKER_HOST" >"$work/dockerd.log" 2>&1 </dev/null &
    for _ in $(seq 120); do
        if docker info >/dev/null 2>&1; then
            iptables -P FORWARD ACCEPT
            return
        fi
        sleep 0.5
    done
    echo "the engine did not start:"
    tail -20 "$work/dockerd.log"
    return 1
}

engine_down() {
    [ -n "$engine_own" ] || return 0
    local pid
    pid=$(cat "$work/dockerd.pid" 2>/dev/null || true)
    if [ -n "$pid" ]; then
        kill "$pid" 2>/dev/null || true
        for _ in $(seq 60); do
            kill -0 "$pid" 2>/dev/null || break
            sleep 0.5
        done
    fi
    ip link del docker0 2>/dev/null || true
    iptables-restore <"$work/iptables" 2>/dev/null || true
    cat "$work/ip_forward" >/proc/sys/net/ipv4/ip_forward 2>/dev/null || true
    umount "$work"/exec/netns/* "$work/data" 2>/dev/null || true
}
