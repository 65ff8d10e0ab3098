# args: SETTINGS IP CASE... with SETTINGS = shell assignments, CASE = NAME:PROTOCOL:CREDITS:MTU:NETEM:MOUNT_OPTIONS. Runs several workouts in one boot.
# WORKOUT in the settings names a script other than workout.sh. If a script is named like the case (NAME.sh for NAME and NAME-ANY), that one runs.
# Leaves /out/NAME/{session.pcap,debugdata.txt,dmesg.txt,log.txt,status}; without a status file the guest died in that case.
export $1; IP=$2; shift 2; worst=0
dmesg -c > /dev/null
for c in "$@"; do
  name=${c%%:*}; rest=${c#*:}; proto=${rest%%:*}; rest=${rest#*:}; credits=${rest%%:*}; rest=${rest#*:}; mtu=${rest%%:*}; rest=${rest#*:}
  export CASE_OUT=/out/$name CREDITS=$credits NETEM="${rest%%:*}"; opts=${rest#*:}
  /bin/tc qdisc del dev eth0 root 2>/dev/null; ip link set eth0 mtu $mtu
  mkdir -p $CASE_OUT; script=${WORKOUT:-workout.sh}; own=$name
  while :; do [ -e /out/$own.sh ] && script=$own.sh && break; case $own in *-*) own=${own%-*};; *) break;; esac; done
  echo "=== case $name: $proto $opts credits=$credits mtu=$mtu $NETEM"
  { timeout -k 10 ${CASE_TIMEOUT:-400} sh /out/$script $proto $IP $opts 2>&1; echo $? > /tmp/rc; } | tee $CASE_OUT/log.txt
  rc=$(cat /tmp/rc)
  dmesg -c > $CASE_OUT/dmesg.txt; sync      # a kernel in trouble may not get past the unmounting
  for m in /mnt2 /mnt; do if grep -q " $m cifs " /proc/mounts; then umount -f $m || umount -l $m; fi; done
  for p in $(pidof tcpdump); do kill -INT $p; done
  sleep 1; dmesg -c >> $CASE_OUT/dmesg.txt
  [ $rc = 0 ] || worst=1
  echo $rc > $CASE_OUT/status; sync
  echo "=== case $name: exit $rc"
done
exit $worst
