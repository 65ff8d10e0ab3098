# Which kernel the guest has: version of the Debian packages, and its name in package names and uname.
# Any 6.12 of bookworm-backports should do; set both to try another.
LAB_VERSION=${LAB_VERSION:-6.12.95-1~bpo12+1}
LAB_KERNEL=${LAB_KERNEL:-6.12.95+deb12}
