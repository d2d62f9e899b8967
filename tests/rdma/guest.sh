#!/bin/bash
# The second stage inside the VM: networks, soft-RoCE adapters, then the command. `vm.sh` puts the
# variables in front: RANK, MACHINES, KERNEL_ROOT, FOLDER, and what is exported to the command.
export PATH=$PATH:/usr/sbin:/usr/bin:/sbin:/bin
put() { echo "$2" > "/proc/sys/$1"; }  # sysctl may not be installed

touch "/vmout/up.$RANK"
mkdir -p /dev/shm /dev/pts
mount -t tmpfs shm /dev/shm
mount -t devpts pts /dev/pts
put kernel/hostname "vm$RANK"
put kernel/printk 1  # soft-RoCE tells of every packet that it sends again
ip link set lo up
release=$(uname -r)
mkdir -p /lib/modules
ln -sfn "$KERNEL_ROOT/lib/modules/$release" "/lib/modules/$release"
modprobe -a rdma_rxe ib_uverbs rdma_ucm veth virtio_net
for buffer in rmem_max rmem_default wmem_max; do put "net/core/$buffer" 16777216; done

if [ "$MACHINES" = 1 ]; then
    # Two adapters on the ends of one wire: packets between two addresses of ours must take it.
    ip link add v0 mtu 9000 type veth peer name v1 mtu 9000
    put net/ipv4/conf/all/rp_filter 0
    for i in 0 1; do
        put "net/ipv4/conf/v$i/accept_local" 1
        put "net/ipv4/conf/v$i/rp_filter" 0
        ip addr add "10.77.0.$((i + 1))/24" dev "v$i"
        ip link set "v$i" up
        rdma link add "rxe$i" type rxe netdev "v$i"
    done
    ip neigh replace 10.77.0.2 lladdr "$(cat /sys/class/net/v1/address)" dev v0
    ip neigh replace 10.77.0.1 lladdr "$(cat /sys/class/net/v0/address)" dev v1
else
    ip link set eth0 mtu 9000 up
    ip addr add "10.77.0.$((RANK + 1))/24" dev eth0
    rdma link add rxe0 type rxe netdev eth0
fi

cd "$FOLDER" || exit
echo "vm$RANK up after $(cut -d' ' -f1 /proc/uptime) s"
/bin/bash "/vmout/command.$RANK" </dev/null 2>&1 | cat
echo "${PIPESTATUS[0]}" > "/vmout/status.$RANK"
sync
echo o > /proc/sysrq-trigger
sleep 60
