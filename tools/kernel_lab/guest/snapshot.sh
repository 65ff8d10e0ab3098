# args: siw|tcp IP [mount options]. Mounts the share at /mnt, and at /mnt2 its snapshot @GMT-2024.01.01-10.00.00 (server.py::SNAPSHOT) with snapshot=.
. /out/lib.sh
P=$1 IP=$2 OPTS=$3 CASE_OUT=${CASE_OUT:-/out} WHEN=133485768000000000
ip addr show dev eth0 | grep -q "${IP%.*}.2/" || ip addr add ${IP%.*}.2/24 dev eth0
R=rw; [ $P = tcp ] || { rdma_dev $P; R=rdma; }
modprobe cifs; client_credits ${CREDITS:-255}; mkdir -p /mnt2
ping -c1 -W2 $IP >/dev/null      # a cold ARP makes the first RDMA connect time out
ck smb_mount $IP share /mnt $R,nosharesock${OPTS:+,$OPTS}
ck smb_mount $IP share /mnt2 $R,nosharesock,snapshot=$WHEN${OPTS:+,$OPTS}
[ $fail = 1 ] && { umount /mnt2; exit 1; }
E=/mnt/expected
not() { ! "$@"; }
tree() { ( cd $1 && find . | sort ); }
trees() { [ "$(tree $E)" = "$(tree /mnt2)" ] && [ "$(tree $E | wc -l)" = 6 ]; }
ck grep -q now /mnt/changed; ck grep -q then /mnt2/changed
ck trees
ck same $E/big /mnt2/big; ck same $E/dir/deep/gone /mnt2/dir/deep/gone
echo 3 > /proc/sys/vm/drop_caches
ck dd if=/mnt2/big of=/tmp/direct bs=4M iflag=direct status=none; ck same $E/big /tmp/direct
ck not touch /mnt2/new; ck not rm -f /mnt2/changed; ck not mkdir /mnt2/made; ck not sh -c 'echo x >> /mnt2/changed'
ck not mv -f /mnt2/changed /mnt2/moved; ck not chmod 400 /mnt2/changed
ck cp /mnt2/dir/deep/gone /mnt/back; ck grep -q "gone by now" /mnt/back
ck not ls /mnt/.snapshots; ck not ls /mnt2/.snapshots
mkdir -p /mnt3; ck not smb_mount $IP share /mnt3 $R,nosharesock,snapshot=133485768010000000   # a second later there is none
cp /proc/fs/cifs/DebugData $CASE_OUT/debugdata.txt
ck umount /mnt2; ck umount /mnt
exit $fail
