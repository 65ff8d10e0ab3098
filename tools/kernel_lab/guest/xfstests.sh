# args: ROOT IP. Runs programs of xfstests, as its generic tests do, with the kernel client on a POSIX mount. Boot with HOSTROOT=1.
# ROOT on the host is the root of a Linux system with xfstests, built, in /x. The whole of a test takes a minute and more in an emulated
# guest, most of it for the shell around the program: this runs the programs alone, with smaller numbers, and looks at what they say.
# With IP=self ksmbd in this guest is the server. /out/results.txt has a line for each: "pass", "fail" or "notrun", test, program.
. /out/lib.sh
ROOT=/host$1 IP=$2 X=/x/src
net_user; host_root || exit 1; modprobe cifs
[ $IP = self ] && { ksmbd_start || exit 1; IP=10.0.2.15; }
for d in tmp run; do mount -t tmpfs tmpfs $ROOT/$d; done
for d in proc sys dev; do mount --bind /$d $ROOT/$d; done
smb_mount $IP ${SHARE:-share} $ROOT/mnt/test rw,posix,actimeo=0,closetimeo=0${EXTRA:+,$EXTRA} || exit 1
T=/mnt/test/x; mkdir $ROOT$T
for i in $(seq 100); do echo name.$i; done > $ROOT/tmp/names
number=0
run() {   # TEST COMMAND: in a new folder, as another may not go away
  number=$((number+1)); mkdir $ROOT$T/$number
  timeout -k 5 ${LIMIT:-60} chroot $ROOT /bin/sh -c "cd $T/$number && $2" < /dev/null > /tmp/one.txt 2>&1; local rc=$?
  case $rc in 0) v=pass;; 77) v=notrun;; 124|137) v=timeout;; *) v=fail;; esac
  echo "$v generic/$1 $2" | tee -a /out/results.txt
  [ $v = pass ] || { echo "   $(tail -n 2 /tmp/one.txt | tr '\n' ' ' | cut -c1-150)" | tee -a /out/results.txt; }
}
run 007 "$X/nametest -l /tmp/names -s 1 -i 300 -z"
run 006 "mkdir p && cd p && $X/permname -c 4 -l 3 && [ \$(find . -type f | wc -l) = 64 ]"
run 011 "mkdir d && $X/dirstress -d \$PWD/d -f 40 -p 2 -n 2"
run 013 "/x/ltp/fsstress -d . -p 2 -n 60 -s 1 -f setxattr=0 -f attr_set=0"
run 014 "$X/truncfile -c 200 t"
run 023 "touch a && $X/renameat2 a b && [ ! -e a ] && mkdir d && $X/renameat2 d e && ln -s b l && $X/renameat2 l m && [ \"\$(readlink m)\" = b ]"
run 024 "touch a b && ! $X/renameat2 -n a b && $X/renameat2 -n a c && [ -e c ]"
run 025 "touch a && mkdir b && { $X/renameat2 -x a b || exit 77; } && [ -d a ]"
run 035 "touch a b && $X/t_rename_overwrite a b && [ ! -e a ]"
run 035 "mkdir a b && $X/t_rename_overwrite a b && [ ! -e a ]"
run 075 "/x/ltp/fsx -q -N 300 -S 1 f"
run 075 "/x/ltp/fsx -q -N 300 -S 1 -x f"
run 091 "/x/ltp/fsx -q -N 200 -S 2 -R -W f"
run 084 "$X/multi_open_unlink -f u -n 20 -s 1 && [ -z \"\$(ls)\" ]"
run 080 "echo x > f && touch -d 2001-01-01 f && $X/writemod . 2 >/dev/null 2>&1; [ \$(stat -c %Y f) = 978307200 ]"
run 002 "touch f; for i in 1 2 3 4 5; do ln f l\$i; done; [ \$(stat -c %h f) = 6 ] && rm l? && [ \$(stat -c %h f) = 1 ]"
run 005 "ln -s b a; ln -s a b; ! cat a 2>/dev/null && ln -s . self && cat self/self/self/a 2>&1 | grep -q symbolic"
run 053 "touch f && chmod 600 f && cp -p f g && [ \$(stat -c %a g) = 600 ]"
run 087 "touch f && chmod 0 f && touch -d 2001-01-01 f && [ \$(stat -c %Y f) = 978307200 ]"
run 126 "cp /bin/true t && chmod 111 t && ./t && chmod 644 t && ! setpriv --reuid 1000 --clear-groups ./t 2>/dev/null"
run 184 "mknod n c 1 3 && [ \"\$(stat -c %t:%T n)\" = 1:3 ] && mknod b b 8 1 && mkfifo p && [ -p p ]"
run 193 "touch f && chmod 6755 f && echo x >> f && [ ! -u f ]"
run 221 "touch f && $X/t_futimens f"
run 236 "touch f && a=\$(stat -c %Z f) && sleep 2 && ln f g && [ \$(stat -c %Z f) -gt \$a ]"
run 245 "mkdir -p a/x b/y && ! mv -T a b 2>/dev/null && [ -d a/x ] && [ -d b/y ]"
run 257 "mkdir d && for i in \$(seq 60); do touch d/\$i; done && $X/t_dir_offset2 d"
run 258 "touch -d 1960-01-01 f && [ \$(stat -c %Y f) = -315619200 ]"
run 309 "mkdir d && a=\$(stat -c %Y d) && sleep 2 && touch d/x && [ \$(stat -c %Y d) -gt \$a ]"
run 314 "mkdir d && chmod 2755 d && [ -g d ] && mkdir d/e && [ -g d/e ]"
run 313 "echo abc > f && a=\$(stat -c %Y f) && sleep 2 && truncate -s 1 f && [ \$(stat -c %Y f) -gt \$a ]"
run 360 "t=\$(printf %01000d 0) && ln -s \$t l && [ \"\$(readlink l)\" = \$t ]"
run 401 "mkdir d && touch f && ln -s f l && mknod c c 1 1 && mknod b b 1 1 && mkfifo p && $X/t_dir_type . | sort | tr '\n' ' ' | grep -q '^. d .. d b b c c d d f f l l p p $'"
run 597 "mkdir d && chmod 1777 d && ln -s f d/l && [ \$(stat -c %a d) = 1777 ]"
run 637 "mkdir d && for i in \$(seq 30); do touch d/\$i; done && [ \$(ls d | wc -l) = 30 ] && rm d/1? && [ \$(ls d | wc -l) = 20 ]"
rm -rf $ROOT$T; umount $ROOT/mnt/test
grep -cE "^(pass|fail|notrun|timeout)" /out/results.txt; dmesg | grep -iE "WARN|BUG|Call Trace" | tail -5
exit 0
