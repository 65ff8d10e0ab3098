# args: siw|tcp IP [mount options]. Mounts a namespace; the kernel's client mounts by itself what its links lead to.
. /out/lib.sh
P=$1 IP=$2 OPTS=$3 R=rdma; CASE_OUT=${CASE_OUT:-/out}
ip addr show dev eth0 | grep -q "${IP%.*}.2/" || ip addr add ${IP%.*}.2/24 dev eth0
rm -f /tmp/cap.pcap; tcpdump -Z root -i eth0 -s 0 -B 65536 -w /tmp/cap.pcap -U 'tcp port 5445 or tcp port 445' 2>/dev/null & T=$!; capturing /tmp/cap.pcap
[ $P = tcp ] && R=rw || rdma_dev $P
modprobe cifs; client_credits ${CREDITS:-255}
ping -c1 -W2 $IP >/dev/null
head -c 400000 /dev/urandom > /tmp/x
ck smb_mount $IP files /mnt $R,actimeo=0${OPTS:+,$OPTS} || { kill -INT $T; exit 1; }
listed() { [ "$(ls $1 | tr '\n' ' ')" = "$2 " ]; }
ck listed /mnt "here in moved there"
ck listed /mnt/in folders
ck mkdir /mnt/here/below
ck cp /tmp/x /mnt/there/x
ck same /tmp/x /mnt/here/below/x                                # two links, one folder
ck same /tmp/x /mnt/in/folders/deep/x
ck mv /mnt/there/x /mnt/there/y; ck same /tmp/x /mnt/in/folders/deep/y
moved() { [ "$(grep -c "files/$1 " /proc/mounts)" = 1 ]; }
for link in here there in/folders/deep; do ck moved $link; done  # each is a mount of its own
[ $P = tcp ] && ck listed /mnt/moved below                       # its first target is not there
refused() { ! "$@" 2>/tmp/why && grep -qi "$WHY" /tmp/why; }
WHY="denied\|busy\|read-only\|permitted"
ck refused mkdir /mnt/new; ck refused touch /mnt/in/new; ck refused rmdir /mnt/here; ck refused mv /mnt/in /mnt/out
cat /proc/fs/cifs/dfscache
cp /proc/fs/cifs/DebugData $CASE_OUT/debugdata.txt
# a lease break that crosses the unmounting is an "unknown frame" for the client: what the others cache does not change while they go
for link in moved in/folders/deep there; do umount /mnt/$link 2>/dev/null; done
sleep 1; ck rm -r /mnt/here/below; sleep 1; umount /mnt/here
ck umount /mnt
sleep 1; kill -INT $T; wait $T; cp /tmp/cap.pcap $CASE_OUT/session.pcap
exit $fail
