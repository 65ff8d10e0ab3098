#!/bin/sh
# setup.sh install | install-dev | test-tools | kernel-lab | samba-newest [DIR] | python: prepare the machine for the make target of that name.
# install, install-dev: .venv with the project (editable), dev adds what tests and linters need.
# test-tools: third-party programs that the interoperability tests run; without them those tests are skipped.
# kernel-lab: programs that building and booting the guest needs. python: print the Python that .venv is made with; PYTHON selects another.
# samba-newest: Debian's development branch with its Samba in a folder, build/samba-newest by default; as root, 500 MB.
# As root on a machine with apt it installs what is missing; otherwise it prints the exact line to run.
set -eu
cd "$(dirname "$0")/.."
export DEBIAN_FRONTEND=noninteractive

# apt_install PACKAGE...: install, or print how. Daemons that packages bring (smbd on port 445) are not started.
apt_install() {
  if ! command -v apt-get >/dev/null; then
    echo "setup: this machine lacks (Debian package names): $*" >&2
    return 1
  fi
  if [ "$(id -u)" != 0 ]; then
    echo "setup: this machine lacks packages. Run:  sudo apt-get install -y --no-install-recommends $*" >&2
    return 1
  fi
  echo "setup: installing $*"
  policy=/usr/sbin/policy-rc.d made_policy=
  if [ ! -e $policy ]; then
    printf '#!/bin/sh\nexit 101\n' > $policy
    chmod 755 $policy
    made_policy=1
    trap 'rm -f /usr/sbin/policy-rc.d' EXIT INT TERM
  fi
  status=0
  { apt-get update -q && apt-get install -q -y --no-install-recommends "$@"; } </dev/null || status=$?
  if [ -n "$made_policy" ]; then
    rm -f $policy
    trap - EXIT INT TERM
  fi
  return $status
}

# missing PROBE=PACKAGE...: the packages whose probe (a program's name, or a path) is not there
missing() {
  for pair in "$@"; do
    probe=${pair%%=*}
    case $probe in
      /*) [ -e "$probe" ] || echo "${pair#*=}" ;;
      *) command -v "$probe" >/dev/null || [ -x "/usr/sbin/$probe" ] || echo "${pair#*=}" ;;
    esac
  done | sort -u
}

# works PYTHON: it is 3.11 or newer and can make a virtual environment with pip in it (Debian's needs python3-venv for that)
works() {
  "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

# The first Python that works: PYTHON if set, else the distribution's, which is built with optimisation (one that pyenv or a
# plain `make install` built, often the first in PATH, makes the server take 12 to 27 % more processor time), else any.
find_python() {
  if [ -n "${PYTHON:-}" ]; then
    works "$PYTHON" && command -v "$PYTHON"
    return
  fi
  for python in /usr/bin/python3 python3 python3.14 python3.13 python3.12 python3.11; do
    if works "$python"; then
      command -v "$python"
      return 0
    fi
  done
  return 1
}

# Make the distribution's Python work if it lacks only python3-venv; without root print what that needs.
complete_python() {
  [ -z "${PYTHON:-}" ] || return 0
  if /usr/bin/python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && ! works /usr/bin/python3; then
    apt_install python3-venv || echo "setup: another Python is used, if there is one; the distribution's may be faster" >&2
  fi
}

# choose_python: set python, or end with what is missing
choose_python() {
  complete_python
  if ! python=$(find_python); then
    if [ -n "${PYTHON:-}" ]; then
      echo "setup: PYTHON=$PYTHON is no Python 3.11 or newer with venv and ensurepip" >&2
      exit 1
    fi
    apt_install python3 python3-venv || exit 1
    python=$(find_python) || { echo "setup: no Python 3.11 or newer with venv and ensurepip found" >&2; exit 1; }
  fi
}

install_project() {   # EXTRAS
  if ! .venv/bin/python -c 'import pip' 2>/dev/null; then
    choose_python
    echo "setup: .venv is made with $("$python" -c 'import os, sys; print(os.path.realpath(sys.executable), sys.version.split()[0])')"
    rm -rf .venv
    "$python" -m venv .venv
  fi
  echo "setup: installing the project into .venv"
  .venv/bin/python -m pip install -q --disable-pip-version-check -e ".$1"
}

case ${1:-} in
  install)
    install_project ""
    touch .venv/.installed ;;
  install-dev)
    install_project "[dev,fuzz]"
    touch .venv/.installed .venv/.installed-dev ;;
  test-tools)
    packages=$(missing smbclient=smbclient qemu-img=qemu-utils krb5kdc=krb5-kdc kadmin.local=krb5-admin-server kinit=krb5-user \
      krb5-config=libkrb5-dev gcc=gcc /usr/include/stdio.h=libc6-dev python3-config=python3-dev smbtorture=samba-testsuite smbd=samba /usr/share/doc/samba-vfs-modules=samba-vfs-modules tshark=tshark tcpdump=tcpdump \
      mount.cifs=cifs-utils ip=iproute2 nft=nftables getfattr=attr etcd=etcd-server etcdctl=etcd-client mkfs.xfs=xfsprogs mkfs.btrfs=btrfs-progs mkfs.ext4=e2fsprogs \
      /usr/include/infiniband/verbs.h=libibverbs-dev /usr/include/rdma/rdma_cma.h=librdmacm-dev /usr/lib/python3/dist-packages/samba=python3-samba \
      debootstrap=debootstrap pipx=pipx groff=groff-base /usr/lib/python3/dist-packages/pip=python3-pip \
      /usr/share/doc/python3-venv=python3-venv \
      chromium=chromium chromedriver=chromium-driver avahi-daemon=avahi-daemon avahi-browse=avahi-utils dbus-daemon=dbus-daemon wsdd=wsdd openssl=openssl \
      /usr/libexec/gvfsd-dnssd=gvfs-backends gio=libglib2.0-bin rsync=rsync rclone=rclone nmap=nmap \
      redis-server=redis-server memcached=memcached fusermount3=fuse3 bindfs=bindfs)
    # shellcheck disable=SC2086  # a list of words
    [ -z "$packages" ] || apt_install $packages || echo "setup: the tests that need these are skipped" >&2
    # The project was installed before there was a compiler.
    if [ -x .venv/bin/python ] && command -v gcc >/dev/null && ! .venv/bin/python -m smbdirect.native; then
      echo "setup: building the modules in C"
      .venv/bin/python -m pip install -q --disable-pip-version-check --no-deps -e .
    fi
    # Their wheels are built here, against the headers above.
    if [ -x .venv/bin/python ] && command -v krb5-config >/dev/null && ! .venv/bin/python -c 'import gssapi, krb5, dns.resolver' 2>/dev/null; then
      echo "setup: building Kerberos for Python"
      .venv/bin/python -m pip install -q --disable-pip-version-check -e ".[kerberos,domain]" ||
        echo "setup: no Kerberos for Python: its tests are skipped" >&2
    fi ;;
  kernel-lab)
    packages=$(missing gcc=gcc make=make xz=xz-utils cpio=cpio /bin/busybox=busybox-static kmod=kmod \
      qemu-system-x86_64=qemu-system-x86 ip=iproute2 tcpdump=tcpdump tshark=tshark pahole=pahole \
      /etc/libibverbs.d/siw.driver=ibverbs-providers ibv_devinfo=ibverbs-utils etcd=etcd-server)
    # shellcheck disable=SC2086
    [ -z "$packages" ] || apt_install $packages || exit 1 ;;
  samba-newest)
    root=${2:-build/samba-newest}
    if [ "$(id -u)" != 0 ]; then
      echo "setup: this needs root (chroot). Run:  sudo tools/setup.sh samba-newest" >&2
      exit 1
    fi
    packages=$(missing debootstrap=debootstrap)
    # shellcheck disable=SC2086
    [ -z "$packages" ] || apt_install $packages || exit 1
    rm -rf "$root.new"
    mkdir -p "$(dirname "$root")"
    debootstrap --variant=minbase sid "$root.new" http://deb.debian.org/debian
    printf '#!/bin/sh\nexit 101\n' > "$root.new/usr/sbin/policy-rc.d"
    chmod 755 "$root.new/usr/sbin/policy-rc.d"
    chroot "$root.new" apt-get install -q -y --no-install-recommends samba samba-ad-dc samba-ad-provision samba-testsuite smbclient samba-vfs-modules </dev/null
    chroot "$root.new" apt-get clean
    rm -rf "$root"
    mv "$root.new" "$root"
    chroot "$root" smbtorture --version ;;
  python)
    choose_python
    echo "$python" ;;
  *)
    sed -n '2,7s/^# //p' "$0" >&2
    exit 2 ;;
esac
