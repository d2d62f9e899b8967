#!/bin/busybox sh
# The first stage inside the VM (initramfs): the host's own / over 9p, read-only, under a RAM
# overlay; only /vmout is written through.
b=/bin/busybox
$b mount -t proc proc /proc
while read -r module; do $b insmod "/modules/$module" || echo "insmod $module failed"; done < /modules/list
options=trans=virtio,version=9p2000.L,msize=512000
$b mount -t 9p -o $options,ro,cache=loose root /lower &&
    $b mount -t tmpfs -o size=75% rw /rw && $b mkdir /rw/upper /rw/work &&
    $b mount -t overlay -o lowerdir=/lower,upperdir=/rw/upper,workdir=/rw/work root /new ||
    $b poweroff -f
for folder in proc sys dev vmout run; do $b mkdir -p /new/$folder; done
$b mount -t proc proc /new/proc
$b mount -t sysfs sys /new/sys
$b mount -t devtmpfs dev /new/dev
$b mount -t tmpfs run /new/run
$b mount -t 9p -o $options,cache=none out /new/vmout
rank=0
for word in $($b cat /proc/cmdline); do case $word in rank=*) rank=${word#rank=} ;; esac; done
exec $b switch_root /new /bin/bash "/vmout/guest.$rank"
