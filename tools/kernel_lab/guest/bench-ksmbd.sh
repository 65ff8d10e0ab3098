# WORKOUT for tools/kernel_lab/ksmbd_guest.py. args: siw|rxe IP. Serves a share by ksmbd until the host makes /out/stop.
. /out/lib.sh
ip addr add $2/24 dev eth0
rdma_dev $1
ck ksmbd_start
ck dd if=/dev/urandom of=/share/big.bin bs=1M count=$FILE_MIB status=none; chmod 666 /share/big.bin
uname -r > /out/kernel
: > /out/serving
while [ ! -e /out/stop ]; do sleep 0.5; done
exit $fail
