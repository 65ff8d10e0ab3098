# args: siw|rxe IP. Programs of the RDMA API on the kernel's device: on rxe its atomic operations, on siw a plain refusal.
# Then rxe and our RoCEv2 in user space, in a network namespace of its own, change numbers of each other.
. /out/lib.sh
ck verbs_device $1; [ $fail = 0 ] || exit 1
ck t host_python -m pytest -q -p no:cacheprovider --timeout=0 -k "'verbs and (counter or atomic)'" tests/smbdirect/rdma/test_api.py
[ $1 = rxe ] || exit $fail
IPROUTE=/usr/sbin/ip
host_ip() { chroot /host $IPROUTE "$@"; }
inside() { chroot /host nsenter -t $space -n "$@"; }
network() {
  chroot /host unshare -n sleep 1000 & space=$!; sleep 2
  modprobe veth; host_ip link add v0 type veth peer name v1 netns $space && host_ip addr add 10.7.0.1/24 dev v0 && host_ip link set v0 up &&
    inside $IPROUTE addr add 10.7.0.2/24 dev v1 && inside $IPROUTE link set v1 up && inside $IPROUTE link set lo up &&
    rdma link add r_v0 type rxe netdev v0
}
ours() { inside /bin/sh -c "cd $TREE && exec env PYTHONDONTWRITEBYTECODE=1 $PYTHON -m tools.kernel_lab.atomics $*"; }
meet() {   # COMMAND-OF-THE-SERVER -- COMMAND-OF-THE-CLIENT
  $1 serve $2 $3 > /tmp/serving 2>&1 & local server=$! i=0
  while ! grep -q listening /tmp/serving; do sleep 1; i=$((i+1)); [ $i -gt 60 ] && break; done
  $4 use $5 $3; local r=$?
  wait $server || r=1; cat /tmp/serving; return $r
}
kernel() { host_python -m tools.kernel_lab.atomics "$@"; }
ck network; [ $fail = 0 ] || exit 1
ck t meet ours roce 10.7.0.2 kernel verbs
ck t meet kernel verbs 10.7.0.1 ours roce
kill $space
exit $fail
