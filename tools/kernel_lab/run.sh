#!/bin/bash
# run.sh GUEST_SCRIPT [args...]: boot the lab kernel under QEMU's TCG (no KVM needed; about 10 s to a mounted share),
# run the script as root inside, print the console, exit with the script's status.
#   LAB=dir                     where build.sh put things
#   OUT=dir                     host folder that the guest sees as /out (scripts in, captures and logs out)
#   NET=user                    slirp: the host's 127.0.0.1 is 10.0.2.2 for the guest (TCP only in practice: iWARP)   [default]
#       tap:IFNAME | listen:PORT | connect:PORT   a host tap (RoCE), or the two ends of a wire between two guests
#   NET2=...                    the same for a second NIC (multichannel)
#   HOSTROOT=1                  the host's / read-only at /host in the guest: `chroot /host` runs the host's programs (our own server, on verbs)
#   TIMEOUT=s (600)  MEM=MiB (2048)  SMP=n (2)  LOGLEVEL=7 shows kernel messages
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
LAB=${LAB:-${XDG_CACHE_HOME:-$HOME/.cache}/smb-kernel-lab}
. "$HERE/kernel.sh"
K=$LAB_KERNEL-amd64 IR=$LAB/initramfs.cpio

make_initramfs() {
  local D=$LAB/ird M t f l r; M=$D/lib/modules/$K
  rm -rf "$D"; mkdir -p "$D"/{bin,sbin,usr/bin,usr/sbin,usr/lib/x86_64-linux-gnu/{libibverbs,gconv},lib,lib64,proc,sys,dev,tmp,run,etc/libibverbs.d,mnt,out,share,root,var} "$M"
  cp /bin/busybox "$D/bin/"; for t in $(/bin/busybox --list | grep -vx busybox); do ln -sf /bin/busybox "$D/bin/$t"; done
  for t in modprobe insmod rmmod lsmod; do rm -f "$D/bin/$t"; cp -L /bin/kmod "$D/sbin/$t"; done   # the kernel calls /sbin/modprobe itself
  for t in ip rdma tc tcpdump dd cmp stat ls cp sync timeout ss; do                                  # real tools over busybox applets
    f=$(type -P $t || true); [ -n "$f" ] && { rm -f "$D/bin/$t"; cp -L "$f" "$D/bin/$t"; } || echo "no $t on the host"
  done
  cp "$LAB"/root/usr/sbin/ksmbd.* "$D/sbin/"
  cp /usr/lib/x86_64-linux-gnu/libibverbs/lib{siw,rxe}*.so "$D/usr/lib/x86_64-linux-gnu/libibverbs/"
  cp /etc/libibverbs.d/{siw,rxe}.driver "$D/etc/libibverbs.d/"
  cp /usr/lib/x86_64-linux-gnu/gconv/{UTF-16.so,gconv-modules} "$D/usr/lib/x86_64-linux-gnu/gconv/"   # for ksmbd.adduser
  find "$D"/{bin,sbin,usr/lib} -type f | while read -r f; do ldd "$f" 2>/dev/null | grep -oE '/[^ ]+\.so[^ ]*' || true; done |
    sort -u | while read -r l; do mkdir -p "$D$(dirname "$l")"; cp -L -n "$l" "$D$l"; done
  printf 'root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n' > "$D/etc/passwd"
  printf 'root:x:0:\nnogroup:x:65534:\n' > "$D/etc/group"
  [ -e "$LAB/root/lib/modules/$K/modules.dep.bin" ] || depmod -b "$LAB/root" $K
  { for t in virtio_net virtio_pci virtio_rng 9p 9pnet_virtio veth dummy rdma_cm rdma_ucm ib_uverbs iw_cm rdma_rxe overlay cifs ksmbd \
             dns_resolver nls_utf8 af_packet sch_netem; do
      modprobe -d "$LAB/root" -S $K --show-depends $t 2>/dev/null || true
    done | awk '$1=="insmod"{print $2}'
    find "$LAB/root/lib/modules/$K"/kernel/{crypto,arch/x86/crypto,lib} -name '*.ko*'; } | sort -u | while read -r f; do
      r=${f#"$LAB/root/lib/modules/$K/"}; mkdir -p "$M/$(dirname "$r")"
      case $r in *.xz) xz -dc "$f" > "$M/${r%.xz}";; *) cp "$f" "$M/$r";; esac
  done
  cp "$LAB/root/lib/modules/$K"/modules.{order,builtin,builtin.modinfo} "$M/"
  mkdir -p "$M"/kernel/{fs/smb/client,fs/smb/server,drivers/infiniband/sw/siw}
  cp "$LAB/modules/cifs.ko" "$M/kernel/fs/smb/client/"; cp "$LAB/modules/ksmbd.ko" "$M/kernel/fs/smb/server/"
  cp "$LAB/modules/siw.ko" "$M/kernel/drivers/infiniband/sw/siw/"
  cp "$LAB/modules/rdma_rxe-retry.ko" "$D/lib/"     # loaded by path, where a case asks for it (guest/lib.sh)
  find "$M" "$D/lib/rdma_rxe-retry.ko" -name '*.ko' -exec strip -g {} +
  depmod -b "$D" $K
  install -m 755 "$HERE/init" "$D/init"
  (cd "$D" && find . | cpio -o -H newc --quiet) > "$IR.new"; mv "$IR.new" "$IR"
}
exec 9>"$LAB/.lock"; flock 9
[ -e "$IR" ] && [ "$IR" -nt "$HERE/init" ] && [ "$IR" -nt "$HERE/run.sh" ] && [ "$IR" -nt "$LAB/modules/rdma_rxe-retry.ko" ] || make_initramfs
exec 9>&-
[ $# -gt 0 ] || exit 0

OUT=${OUT:-$(mktemp -d)}; mkdir -p "$OUT"; rm -f "$OUT/status"
cp "$HERE"/guest/*.sh "$OUT/"; cp "$1" "$OUT/guest.sh"; shift
printf '%q ' "$@" > "$OUT/args"
nic() {   # SPEC ID MAC
  case $1 in
    user) echo "-netdev user,id=$2 -device virtio-net-pci,netdev=$2,romfile=,mac=$3";;
    tap:*) echo "-netdev tap,id=$2,ifname=${1#tap:},script=no,downscript=no -device virtio-net-pci,netdev=$2,romfile=,mac=$3";;
    listen:*) echo "-netdev socket,id=$2,listen=127.0.0.1:${1#listen:} -device virtio-net-pci,netdev=$2,romfile=,mac=$3";;
    connect:*) echo "-netdev socket,id=$2,connect=127.0.0.1:${1#connect:} -device virtio-net-pci,netdev=$2,romfile=,mac=$3";;
  esac
}
m=$(printf '%02x' $((RANDOM % 256)))
timeout --foreground "${TIMEOUT:-600}" qemu-system-x86_64 -machine q35 -accel tcg,thread=multi -cpu max -smp "${SMP:-2}" -m "${MEM:-2048}" \
  -kernel "$LAB/root/boot/vmlinuz-$K" -initrd "$IR" -append "console=ttyS0 loglevel=${LOGLEVEL:-4} panic=-1 oops=panic no_timer_check" \
  -nographic -no-reboot -nodefaults -serial stdio -monitor none -device virtio-rng-pci \
  $(nic "${NET:-user}" n0 52:54:00:00:$m:01) ${NET2:+$(nic "$NET2" n1 52:54:00:00:$m:02)} \
  -virtfs local,path="$OUT",mount_tag=out,security_model=none,id=out \
  ${HOSTROOT:+-virtfs local,path=/,mount_tag=host,security_model=none,id=host,readonly=on,multidevs=remap} </dev/null 2>&1 | sed -u 's,\r,,g' | tee "$OUT/console.log"
[ -e "$OUT/status" ] && exit "$(cat "$OUT/status")"
echo "the guest left no status (crash or timeout)"; exit 99
