# args: siw|rxe [options of the server]. Starts our server in this guest, on the kernel's RDMA device through verbs (HOSTROOT=1). It serves 10.0.2.15 from a
# tmpfs, acting as another user: the credentials of its event loop change with every file, which the kernel's RDMA descriptors do not tolerate.
# Environment: TREE and PYTHON, the project and its interpreter as on the host. Leaves CASE_OUT/server.log. A second run replaces the server.
. /out/lib.sh
ck verbs_device $1; shift
verbs_server_stop
: > ${CASE_OUT:-/out}/server.log; rm -rf /host/tmp/share /host/tmp/state; mkdir -p /host/tmp/share; chroot /host chown games /tmp/share
chroot /host /bin/sh -c "cd $TREE && exec env PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 $PYTHON -m smb3server \
  --share share=/tmp/share,user=games --user u:pw --rdma=verbs --listen 10.0.2.15 --state /tmp/state $*" > ${CASE_OUT:-/out}/server.log 2>&1 &
echo $! > /tmp/verbs-server.pid
ready() { local i=0; while ! grep -q ^ready ${CASE_OUT:-/out}/server.log; do sleep 0.5; i=$((i+1)); [ $i -gt 120 ] && return 1; kill -0 $(cat /tmp/verbs-server.pid) || return 1; done; }
ck ready
[ $fail = 0 ] || cat ${CASE_OUT:-/out}/server.log
exit $fail
