#!/usr/bin/env bash
# Runs docker-compose.yml for real, from images built here to nothing left.
#
# With a Docker engine that answers, that one is used. Without, Debian's own is installed and started
# by hand, which takes root, with data and socket of its own; it goes again at the end. An engine that
# can't be started is a failure. Images that no registry gives are made here, under their names.
set -euo pipefail
cd "$(dirname "$0")/../.."
here=tests/compose
work=$(mktemp -d /tmp/moonpool-compose.XXXXXX)
# shellcheck source=tests/compose/engine.sh
source "$here/engine.sh"
# shellcheck source=tests/compose/images.sh
source "$here/images.sh"

say() { echo "-- [$SECONDS s] $*"; }

free_port() {
    python3 -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

export COMPOSE_PROJECT_NAME=moonpool-test
export COMPOSE_TESTS=1
API_PORT=$(free_port) NATS_PORT=$(free_port)
# One core each: more instances than cores run here, and they must answer at any load.
export API_PORT NATS_PORT INSTANCE_CPUS=1 SLO_TTFT_S=120 SLO_TBT_S=10
export KV_POOL_BYTES=$((128 << 20)) STORE_DRAM_BYTES=$((128 << 20))
export STORE_NVME_BYTES=$((256 << 20))
export NATS_OBSERVER_PASSWORD=observer-of-the-test NATS_OPERATOR_PASSWORD=operator-of-the-test

ended() {
    status=$?
    trap - EXIT INT TERM
    docker compose --profile '*' down -v -t 5 >/dev/null 2>&1 || true
    wheels_down
    engine_down
    rm -rf "$work"
    exit $status
}
trap ended EXIT
trap 'exit 130' INT TERM

if docker info >/dev/null 2>&1 && docker compose version >/dev/null 2>&1; then
    say "the engine that runs here: $(docker version -f '{{.Server.Version}}')"
else
    say "installing an engine"
    engine_install
    say "starting it"
    engine_up
fi
say "images"
images
say "compose"
.venv/bin/python -m pytest -q --durations=0 --durations-min=1 "$here" "$@"
say "green"
