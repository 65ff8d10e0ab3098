# args: siw|tcp IP [mount options]. Puts load on a share through two clients for STRESS_SECONDS (20), and verifies all content.
. /out/lib.sh
. /out/mounts.sh
# Whole pages only. Linux 6.12 without a write lease writes back a page of which it has only a part, with zeros in place of the rest that it never read
# (seen in captures over TCP). Over SMB Direct it loses the connection ("ib_map_mr_sg failed") on reads that start within a cached page.
two_mounts "$@"; [ $fail = 1 ] && { umount /mnt2; exit 1; }
ck mkdir /mnt/stress
ck t /out/stress.bin ${STRESS_SECONDS:-20} ${STRESS_SEED:-1} /mnt/stress /mnt2/stress 4096
cp /proc/fs/cifs/DebugData ${CASE_OUT:-/out}/debugdata.txt
ck rmdir /mnt2/stress; ck umount /mnt2; ck umount /mnt
exit $fail
