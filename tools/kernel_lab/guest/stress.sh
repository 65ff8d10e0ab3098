# args: siw|tcp IP [mount options]. STRESS_SECONDS (20) of load through two clients at once, all content verified.
. /out/lib.sh
. /out/mounts.sh
# Whole pages: Linux 6.12 without a write lease writes back a page of which it has only a part, zeros in place of the rest that it never
# read (seen in captures over TCP), and over SMB Direct loses the connection ("ib_map_mr_sg failed") over reads that start within a cached page.
two_mounts "$@"; [ $fail = 1 ] && { umount /mnt2; exit 1; }
ck mkdir /mnt/stress
ck t /out/stress.bin ${STRESS_SECONDS:-20} ${STRESS_SEED:-1} /mnt/stress /mnt2/stress 4096
cp /proc/fs/cifs/DebugData ${CASE_OUT:-/out}/debugdata.txt
ck rmdir /mnt2/stress; ck umount /mnt2; ck umount /mnt
exit $fail
