# args: siw|tcp IP [mount options]. Mounts a share with the POSIX extensions, and asks for what programs on Linux expect of a file system.
# With IP=self it is ksmbd in this guest, for comparison.
. /out/lib.sh
P=$1 IP=$2 OPTS=$3 CASE_OUT=${CASE_OUT:-/out} D=/mnt/posix
case $IP in 10.0.2.2|10.0.2.15|self) net_user;; *) ip addr show dev eth0 | grep -q "${IP%.*}.2/" || ip addr add ${IP%.*}.2/24 dev eth0;; esac
[ $P = tcp ] && R=rw || { rdma_dev $P; R=rdma; }
CAPIF=eth0; [ $IP = self ] && { ksmbd_start; IP=10.0.2.15; CAPIF=lo; }
modprobe cifs; client_credits ${CREDITS:-255}; ping -c1 -W2 $IP >/dev/null
rm -f /tmp/cap.pcap; tcpdump -Z root -i $CAPIF -s 0 -B 65536 -w /tmp/cap.pcap -U 'tcp port 5445 or tcp port 445' 2>/dev/null & T=$!; capturing /tmp/cap.pcap
mnt() { smb_mount $IP ${SHARE:-share} /mnt $R,$OPTS,$1; }
ck mnt actimeo=0,closetimeo=0; [ $fail = 1 ] && { dmesg | tail -20; kill -INT $T; exit 1; }
in_use() { grep ' /mnt cifs ' /proc/mounts | grep -q ,posix, ; }
ck in_use
ck mkdir $D
printf beside > $D/beside
for check in modes names unlinking renaming links symlinks special volume appending; do ck mkdir $D/$check; ck /out/posix.bin $check $D/$check; done
left() { [ -z "$(ls -A $D/*/ | grep -v :)" ] && [ ! -e $D/beside ]; }
ck left                                                   # each check removes what it made
head -c 8388608 /dev/urandom > /tmp/large
large() { dd if=/tmp/large of=$D/large bs=1M oflag=direct status=none && [ $(stat -c %s $D/large) = 8388608 ] && dd if=$D/large of=/tmp/back bs=1M iflag=direct status=none && cmp -s /tmp/large /tmp/back; }
ck large
cp /proc/fs/cifs/DebugData $CASE_OUT/debugdata.txt
owned() { [ "$(stat -c %u:%g:%a $D/owned)" = $1 ]; }
touch $D/owned; ck umount /mnt
ck mnt modefromsid,idsfromsid                             # without these options this client keeps new owners to itself
ck chown 1234:2345 $D/owned; ck chmod 0640 $D/owned
made() { chmod 0755 /out/posix.bin && (umask 026; mkdir $D/made && cp /out/posix.bin $D/made/751 && echo > $D/made/640); }
ck made                                                   # now the client sends descriptors with new files
umount /mnt; ck mnt actimeo=0,closetimeo=0; ck owned 1234:2345:640     # nothing cached
stays() { [ "$(cd $D && stat -c %n:%a made made/*)" = "$(printf 'made:751\nmade/640:640\nmade/751:751')" ]; }
ck stays
ck rm -r $D; ck umount /mnt
sleep 1; kill -INT $T; wait $T; cp /tmp/cap.pcap $CASE_OUT/session.pcap
exit $fail
