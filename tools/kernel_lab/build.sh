#!/bin/bash
# Make a Linux guest with a real SMB Direct client. Debian ships cifs.ko and ksmbd.ko without SMB Direct and no siw.ko, so
# those three modules are built out of tree from Debian's own source package (about 80 s on 2 cores) and put over
# Debian's 6.12 kernel image (bookworm-backports, built with gcc-12, as on Debian 12).
# Nothing is installed: packages are downloaded and unpacked under $LAB. Needs as root, once:
#   apt-get install -y --no-install-recommends gcc make xz-utils cpio busybox-static kmod qemu-system-x86 iproute2 tcpdump tshark ibverbs-providers pahole
set -euo pipefail
LAB=${LAB:-${XDG_CACHE_HOME:-$HOME/.cache}/smb-kernel-lab}
HERE=$(cd "$(dirname "$0")" && pwd)
. "$HERE/kernel.sh"
V=$LAB_VERSION K=$LAB_KERNEL
SUITES=${SUITES:-bookworm-backports}
mkdir -p "$LAB"/{apt/lists/partial,dl,root,src,modules}

# apt with the extra suite, from the same mirror as the system's, without touching the system's lists
MIRROR=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -v security | head -1)
KEYS=/usr/share/keyrings/debian-archive-keyring.gpg
for s in $SUITES; do echo "deb [signed-by=$KEYS] $MIRROR $s main"; done > "$LAB/apt/sources.list"
apt_x() { apt-get -q -o Dir::Etc::SourceList="$LAB/apt/sources.list" -o Dir::Etc::SourceParts=/dev/null \
                  -o Dir::State::Lists="$LAB/apt/lists" -o APT::Sandbox::User=root "$@"; }
cd "$LAB/dl"
if [ ! -e .complete ]; then
  apt_x update
  apt_x --print-uris download linux-source-6.12=$V > /dev/null 2>&1 || {
    echo "$MIRROR $SUITES has no linux-source-6.12 $V; set LAB_VERSION and LAB_KERNEL to what it has (see kernel.sh)" >&2
    exit 1
  }
  apt_x download linux-image-$K-amd64=$V linux-headers-$K-amd64=$V linux-headers-$K-common=$V linux-kbuild-$K=$V linux-source-6.12=$V
  apt-get -q -o APT::Sandbox::User=root download ksmbd-tools   # unpacked only: installing it removes samba
  for d in *.deb; do dpkg -x "$d" ../root; done
  touch .complete
fi

R=$LAB/root H=$R/usr/src/linux-headers-$K-amd64 C=$R/usr/src/linux-headers-$K-common S=$LAB/src
if [ ! -d "$S/fs/smb" ]; then
  tar -xJf "$R/usr/src/linux-source-6.12.tar.xz" -C "$S" --strip-components=1 --wildcards \
    'linux-source-6.12/fs/smb/*' 'linux-source-6.12/fs/nls/*' 'linux-source-6.12/drivers/infiniband/sw/*' \
    'linux-source-6.12/scripts/asn1_compiler.c' 'linux-source-6.12/include/linux/asn1*.h'
fi
# the headers name absolute /usr paths: point them at the unpacked copies
echo "include $C/Makefile" > "$H/Makefile"
grep -q "$R/usr/src" "$H/.kernelvariables" || sed -i "s,^override srctree.*,,;s, /usr/src/, $R/usr/src/,g" "$H/.kernelvariables"
cc -O2 -I"$S/include" -o "$H/scripts/asn1_compiler" "$S/scripts/asn1_compiler.c"   # absent from Debian's kbuild package

mk() { make -j"$(nproc)" -s -C "$H" M="$S/$1" "${@:2}" modules; cp "$S/$1"/*.ko "$LAB/modules/"; }
mk fs/smb/client CONFIG_CIFS=m CONFIG_CIFS_SMB_DIRECT=y CONFIG_CIFS_DEBUG=y CONFIG_CIFS_DEBUG2=y CONFIG_CIFS_COMPRESSION=y \
   KCFLAGS="-DCONFIG_CIFS_SMB_DIRECT=1 -DCONFIG_CIFS_DEBUG2=1 -DCONFIG_CIFS_COMPRESSION=1"
mk fs/smb/server CONFIG_SMB_SERVER=m CONFIG_SMB_SERVER_SMBDIRECT=y KCFLAGS=-DCONFIG_SMB_SERVER_SMBDIRECT=1
mk drivers/infiniband/sw/siw CONFIG_RDMA_SIW=m KCFLAGS=-DCONFIG_RDMA_SIW_MODULE=1

# rxe a second time, repaired (see rxe-retry.sed): a copy beside Debian's own, which stays what guests load by default
rm -rf "$S/rxe-retry" && cp -r "$S/drivers/infiniband/sw/rxe" "$S/rxe-retry"
sed -i -f "$HERE/rxe-retry.sed" "$S/rxe-retry/rxe_req.c"
cmp -s "$S/rxe-retry/rxe_req.c" "$S/drivers/infiniband/sw/rxe/rxe_req.c" && { echo "rxe-retry.sed does not fit this kernel" >&2; exit 1; }
make -j"$(nproc)" -s -C "$H" M="$S/rxe-retry" CONFIG_RDMA_RXE=m modules
cp "$S/rxe-retry/rdma_rxe.ko" "$LAB/modules/rdma_rxe-retry.ko"
cp "$HERE/build.sh" "$LAB/modules/"    # a lab that another version of this script has built is built again
ls -l "$LAB/modules"
