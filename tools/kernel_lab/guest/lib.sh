# Helpers for guest scripts: . /out/lib.sh. Every function may be called again: several cases share one boot.
up() { cut -d' ' -f1 /proc/uptime; }
say() { echo "== [$(up)] $*"; }
fail=0
ck() { if "$@"; then say "ok: $*"; else say "FAIL($?): $*"; fail=1; fi; }
t() { local a=$(up); "$@"; local r=$?; echo "TIME $(echo "$a $(up)" | awk '{printf "%.2f", $2-$1}')s rc=$r: $*"; return $r; }
capturing() {   # FILE: wait until tcpdump, which writes its header first, captures into it: on a busy machine its start takes seconds
  local i=0; while [ ! -s $1 ] && [ $i -lt 100 ]; do sleep 0.2; i=$((i+1)); done; sleep 0.2
}

net_user() {   # QEMU's user network: the host's 127.0.0.1 is 10.0.2.2
  ip addr show dev eth0 | grep -q 10.0.2.15 && return
  ip addr add 10.0.2.15/24 dev eth0; ip route add default via 10.0.2.2
}
# as cmp -s; 100 if the data was read without an error and differs, which no retry of a case excuses
same() { cmp -s "$@" || { [ $? != 1 ] && return 1; return 100; }; }
rdma_dev() {   # siw|rxe [netdev]. RXE_RETRY=1 takes the rxe that repeats its send queue correctly (docs/rocev2.md)
  rdma link show 2>/dev/null | grep -q "r_$1" && return
  if [ "$1$RXE_RETRY" = rxe1 ]; then
    modprobe --show-depends rdma_rxe | grep -v rdma_rxe | while read -r insmod m; do insmod $m 2>/dev/null; done
    insmod /lib/rdma_rxe-retry.ko
  else
    modprobe $1 2>/dev/null || modprobe rdma_$1
  fi
  # says when a registration is refused because the region is valid already
  echo 'module rdma_rxe format "not free" +p' > /sys/kernel/debug/dynamic_debug/control 2>/dev/null
  rdma link add r_$1 type $1 netdev ${2:-eth0}
}
netem_on() { [ -z "$NETEM" ] || /bin/tc qdisc add dev ${CAPIF:-eth0} root netem $NETEM; }
netem_off() {   # fails if loss was requested and nothing was lost
  [ -n "$NETEM" ] || return 0
  local seen=$(/bin/tc -s qdisc show dev ${CAPIF:-eth0}); echo "$seen"
  /bin/tc qdisc del dev ${CAPIF:-eth0} root
  case "$NETEM" in *loss*) ! echo "$seen" | grep -q 'dropped 0,';; esac
}
client_credits() {   # N: SMB Direct credits that the client requests and grants from the next mount on
  echo $1 > /proc/fs/cifs/smbd_receive_credit_max && echo $1 > /proc/fs/cifs/smbd_send_credit_target
}
smb_mount() {   # IP SHARE DIR OPTS: busybox mount straight into mount(2); mount.cifs is not needed. OPTS may name vers=
  local vers=vers=3.1.1,; case $4 in *vers=*) vers=;; esac
  timeout 100 mount -i -t cifs //$1/$2 $3 -o ip=$1,username=${SMBUSER:-u},password=${SMBPASS:-pw},$vers$4
}
ksmbd_start() {   # the kernel's own server, as a peer to compare with: share "share" = /share, user u, password pw
  ss -ltn | grep -q ':445 ' && return
  modprobe ksmbd; mkdir -p /etc/ksmbd /run/lock; chmod 777 /share
  printf '[global]\n\tnetbios name = KSMBD\n\tserver multi channel support = yes\n[share]\n\tpath = /share\n\tread only = no\n\twriteable = yes\n' > /etc/ksmbd/ksmbd.conf
  ksmbd.adduser -c /etc/ksmbd/ksmbd.conf -a u -p pw 2>&1 || ksmbd.adduser -a u -p pw
  ksmbd.mountd -c /etc/ksmbd/ksmbd.conf 2>&1
  local i=0; while ! ss -ltn | grep -q ':445 '; do sleep 0.2; i=$((i+1)); [ $i -gt 50 ] && { say "ksmbd not listening"; return 1; }; done
}
host_root() {   # with HOSTROOT=1: the host's file system at /host, writable places on tmpfs; then: chroot /host COMMAND
  mkdir -p /host; mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=262144,cache=loose host /host || return 1
  for d in tmp run; do mount -t tmpfs tmpfs /host/$d; done
  for d in proc sys dev; do mount --bind /$d /host/$d; done
  modprobe rdma_ucm; modprobe ib_uverbs
}
host_python() {   # the project's Python programs on this kernel; TREE and PYTHON are the project and its interpreter as on the host
  chroot /host /bin/sh -c "cd $TREE && exec env PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 VERBS_HOST=10.0.2.15 CHURN_CONNECTIONS=${CHURN:-1000} $PYTHON $*"
}
smb3server() { host_python -m smb3server "$@"; }
verbs_device() {   # siw|rxe: that device alone on the interface, so that there is no doubt which one serves, and the host's programs
  local other=siw; [ $1 = siw ] && other=rxe
  net_user
  rdma link show 2>/dev/null | grep -q "r_$other" && rdma link del r_$other
  rdma_dev $1
  [ -d /host/usr ] || host_root
}
verbs_server_stop() {   # SIGTERM to what verbs-server.sh started; its status
  [ -f /tmp/verbs-server.pid ] || return 0
  local pid=$(cat /tmp/verbs-server.pid) i=0; rm /tmp/verbs-server.pid
  kill $pid 2>/dev/null || return 1
  while kill -0 $pid 2>/dev/null; do sleep 0.2; i=$((i+1)); [ $i -gt 100 ] && { kill -9 $pid; return 1; }; done
  return 0
}
