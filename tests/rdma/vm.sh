#!/bin/bash
# vm.sh [-n] [-t SECONDS] -o FOLDER -- COMMAND...
#
# Runs COMMAND as root in a virtual machine that has soft-RoCE adapters, and exits with its status
# (124: it took longer than SECONDS, 125: the machine died first, 126: set-up failed). The machine's
# root is this one's own / (read-only, with a RAM overlay); FOLDER here is /vmout there.
# One machine has rxe0 (10.77.0.1) and rxe1 (10.77.0.2) on the ends of a wire. With -n there are two
# machines on a wire, VM_RANK=0 (10.77.0.1) and 1 (10.77.0.2), one rxe0 and COMMAND each.
#
# Everything is emulated: neither KVM nor an adapter nor InfiniBand in the kernel is needed here.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
limit_s=600 boot_s=60 machines=1 memory_mib=3072 out=
while [ $# -gt 0 ]; do
    case $1 in
    -n) machines=2 memory_mib=1536; shift ;;
    -t) limit_s=$2; shift 2 ;;
    -o) out=$2; shift 2 ;;
    --) shift; break ;;
    *) echo "vm.sh: what is $1?" >&2; exit 126 ;;
    esac
done
[ $# -gt 0 ] && [ -n "$out" ] || { sed -n 2,10p "$0"; exit 126; }
cache=${MOONPOOL_VM_CACHE:-/var/cache/moonpool-vm}
mkdir -p "$cache" "$out"
out=$(cd "$out" && pwd)
pids=()
trap '[ ${#pids[@]} = 0 ] || kill "${pids[@]}" 2>/dev/null || :' EXIT
trap 'exit 143' TERM INT

packages=(qemu-system-x86 busybox-static cpio kmod iproute2 rdma-core ibverbs-providers
    python3-pyverbs)

install_missing() {
    local missing=() package
    for package in "${packages[@]}"; do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] ||
            missing+=("$package")
    done
    [ ${#missing[@]} = 0 ] && return
    echo "vm.sh: installing ${missing[*]}"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
}

# Debian's own kernel with the modules that its first stage needs, as "$cache/vmlinuz" and
# "$cache/initrd.gz"; the second stage takes the rest from "$cache/root".
make_kernel() {
    local kernel release work=$cache/new module stamp
    stamp=$(sha256sum "$here/init.sh" | cut -d' ' -f1)
    [ "$(cat "$cache/ready" 2>/dev/null)" = "$stamp" ] && return
    echo "vm.sh: preparing a kernel"
    rm -rf "$work" "$cache/root" "$cache/ready"
    mkdir -p "$work"/initrd/{bin,modules,proc,lower,rw,new}
    apt-cache show linux-image-amd64 >/dev/null 2>&1 || apt-get update -qq
    kernel=$(apt-cache depends linux-image-amd64 | awk '/Depends: linux-image/ {print $2; exit}')
    (cd "$work" && apt-get download -qq "$kernel" && dpkg -x ./"$kernel"_*.deb "$cache/root")
    release=${kernel#linux-image-}
    depmod -b "$cache/root" "$release"
    cp /bin/busybox "$work/initrd/bin/"
    for module in virtio_pci 9pnet_virtio 9p overlay virtio_rng; do
        modprobe -d "$cache/root" -S "$release" --show-depends $module
    done | awk '$1 == "insmod" && !seen[$2]++ {print $2}' > "$work/list"
    while read -r module; do
        cp "$module" "$work/initrd/modules/"
        basename "$module"
    done < "$work/list" > "$work/initrd/modules/list"
    install -m 755 "$here/init.sh" "$work/initrd/init"
    (cd "$work/initrd" && find . | cpio -o -H newc --quiet | gzip -1) > "$cache/initrd.gz"
    cp "$cache/root/boot/vmlinuz-$release" "$cache/vmlinuz"
    rm -rf "$work"
    echo "$stamp" > "$cache/ready"
}

set_up() {
    exec 9>"$cache/lock"
    flock -w 900 9
    install_missing
    make_kernel
    # Only pyverbs is to be seen, not all of Debian's Python packages.
    mkdir -p "$cache/pythonpath"
    ln -sfn /usr/lib/python3/dist-packages/pyverbs "$cache/pythonpath/pyverbs"
    exec 9>&-
}
status=0
(set -e; set_up) || status=$?  # reported below, with a status that says so
[ $status = 0 ] && [ -e "$cache/ready" ] || { echo "vm.sh: set-up failed" >&2; exit 126; }

second_stage() { # of machine $1
    local name
    for name in PATH HOME PYTHONPATH ${VM_ENV:-}; do
        [ -z "${!name:-}" ] || printf 'export %s=%q\n' "$name" "${!name}"
    done
    printf 'export VM_RANK=%s VM_MACHINES=%s PYTHONDONTWRITEBYTECODE=1 LANG=C.UTF-8\n' "$1" $machines
    printf 'export OPENBLAS_CORETYPE=Haswell\n'
    printf 'RANK=%s MACHINES=%s KERNEL_ROOT=%q FOLDER=%q\n' "$1" $machines "$cache/root" "$PWD"
    cat "$here/guest.sh"
}

PYTHONPATH=$cache/pythonpath${PYTHONPATH:+:$PYTHONPATH}
kernel_words="console=ttyS0 quiet panic=-1 net.ifnames=0 mitigations=off no_timer_check nowatchdog"

boot() { # machine $1
    local rank=$1 wire=() other=$((1 - $1))
    rm -f "$out/status.$rank" "$out/up.$rank" "$out/wire$rank"
    printf '%q ' "${command[@]}" > "$out/command.$rank"
    second_stage "$rank" > "$out/guest.$rank"
    if [ $machines = 2 ]; then
        wire=(
            -netdev "dgram,id=wire,local.type=unix,local.path=$out/wire$rank"
            -device "virtio-net-pci,netdev=wire,host_mtu=9000,mac=52:54:00:77:00:0$rank"
        )
        wire[1]+=",remote.type=unix,remote.path=$out/wire$other"
    fi
    timeout -k 5 "$limit_s" qemu-system-x86_64 \
        -accel tcg,thread=multi,tb-size=512 -cpu max -smp 2 -m $memory_mib \
        -nodefaults -no-user-config -display none -no-reboot -serial stdio \
        -kernel "$cache/vmlinuz" -initrd "$cache/initrd.gz" -device virtio-rng-pci \
        -append "$kernel_words rank=$rank" \
        -virtfs local,path=/,mount_tag=root,security_model=none,readonly=on,multidevs=remap \
        -virtfs "local,path=$out,mount_tag=out,security_model=none,multidevs=remap" \
        "${wire[@]}" </dev/null > >(sed -u -e 's/\r$//' -e "s/^/vm$rank: /") 2>&1 &
    pids+=($!)
}

all_up() {
    local rank
    for ((rank = 0; rank < machines; rank++)); do
        [ -e "$out/up.$rank" ] || return 1
    done
}

# An emulated machine on a busy host now and then misses its first timer and stands still for ever.
command=("$@")
for attempt in 1 2 3; do
    for ((rank = 0; rank < machines; rank++)); do boot $rank; done
    deadline=$((SECONDS + boot_s))
    until all_up || [ $SECONDS -ge $deadline ]; do sleep 0.5; done
    all_up && break
    echo "vm.sh: not up within $boot_s s, attempt $attempt"
    kill "${pids[@]}" 2>/dev/null || :
    wait "${pids[@]}" 2>/dev/null || :
    pids=()
done
[ ${#pids[@]} -gt 0 ] || { echo "vm.sh: no machine came up" >&2; exit 126; }

result=0
for ((rank = 0; rank < machines; rank++)); do
    ended=0
    wait "${pids[$rank]}" || ended=$?
    if [ -s "$out/status.$rank" ]; then
        mine=$(cat "$out/status.$rank")
    elif [ $ended = 124 ] || [ $ended = 137 ]; then
        mine=124
    else
        mine=125
    fi
    [ $result != 0 ] || result=$mine
done
pids=()
exit $result
