# args: tcp IP [mount options]. Mounts two shares by one name; the second is another process's, at another address.
. /out/lib.sh
P=$1 IP=$2 OPTS=$3; CASE_OUT=${CASE_OUT:-/out}
ip addr show dev eth0 | grep -q "${IP%.*}.2/" || ip addr add ${IP%.*}.2/24 dev eth0
rm -f /tmp/cap.pcap; tcpdump -Z root -i eth0 -s 0 -B 65536 -w /tmp/cap.pcap -U 'tcp port 445' 2>/dev/null & T=$!; capturing /tmp/cap.pcap
modprobe cifs; client_credits ${CREDITS:-255}
ping -c1 -W2 $IP >/dev/null; mkdir -p /mnt /mnt2
head -c 400000 /dev/urandom > /tmp/x
at() { grep " $1 cifs " /proc/mounts | grep -q "addr=$2,"; }
ck smb_mount $IP share /mnt rw,actimeo=0${OPTS:+,$OPTS} || { kill -INT $T; exit 1; }
ck timeout 100 mount -i -t cifs //$IP/second /mnt2 -o username=u,password=pw,vers=3.1.1,actimeo=0,rw || { kill -INT $T; exit 1; }
grep cifs /proc/mounts
ck at /mnt $IP; ck at /mnt2 ${IP%.*}.7
ck cp /tmp/x /mnt/x; ck cp /tmp/x /mnt2/y
ck same /tmp/x /mnt/x; ck same /tmp/x /mnt2/y
cat /proc/fs/cifs/dfscache
cp /proc/fs/cifs/DebugData $CASE_OUT/debugdata.txt
ck umount /mnt2; ck umount /mnt
sleep 1; kill -INT $T; wait $T; cp /tmp/cap.pcap $CASE_OUT/session.pcap
exit $fail
