# args as workout.sh: this kernel works with our server in this guest through verbs. Then the counters of a connection in steady state are compared:
# CASE_OUT/warm.json and CASE_OUT/steady.json are the server's status before and after further work of the same kind.
. /out/lib.sh
ck sh /out/verbs-server.sh $1; [ $fail = 0 ] || exit 1
ck sh /out/workout.sh "$@"
report() { smb3server status --json --state /tmp/state > $1; }
move() {   # COUNT: large and small transfers both ways, past the client's cache
  dd if=/tmp/steady of=/mnt/steady bs=512k count=8 oflag=direct 2>/dev/null && dd if=/mnt/steady of=/dev/null bs=512k iflag=direct 2>/dev/null &&
  dd if=/tmp/steady of=/mnt/small bs=4k count=$1 oflag=direct 2>/dev/null && dd if=/mnt/small of=/dev/null bs=4k iflag=direct 2>/dev/null
}
warm() {   # more concurrency than later: the number of lent buffers depends on how soon the peer acknowledges
  local jobs= r=0
  for i in 1 2 3; do
    (dd if=/tmp/steady of=/mnt/warm$i bs=512k count=8 oflag=direct && dd if=/mnt/warm$i of=/dev/null bs=512k iflag=direct &&
      dd if=/tmp/steady of=/mnt/warm$i bs=4k count=50 oflag=direct && dd if=/mnt/warm$i of=/dev/null bs=4k iflag=direct) 2>/dev/null & jobs="$jobs $!"
  done
  for j in $jobs; do wait $j || r=1; done
  rm /mnt/warm1 /mnt/warm2 /mnt/warm3 && return $r
}
head -c 4194304 /dev/urandom > /tmp/steady
ck smb_mount $2 share /mnt rdma; ck warm; ck move 50
ck report $CASE_OUT/warm.json; ck move 200; ck report $CASE_OUT/steady.json
ck umount /mnt
ck verbs_server_stop
exit $fail
