#!/bin/sh
# build_deb.sh [FOLDER]: build the Debian package of this tree into FOLDER (build/deb) and print its path.
# It needs dpkg-deb, a C compiler, and the distribution's Python with venv and pip. Packages that the server needs come from
# pip's index. EXTRAS chooses the optional parts.
set -eu
cd "$(dirname "$0")/../.."
umask 022
# pip would take packages there for installed.
unset PYTHONPATH PYTHONHOME
out=${1:-build/deb}
python=/usr/bin/python3
extras=${EXTRAS:-$($python - <<'EOF'
import tomllib
with open("pyproject.toml", "rb") as file:
    extras = tomllib.load(file)["project"]["optional-dependencies"]
# Kerberos is built against libraries of the machine, and the rest is for developers.
print(",".join(sorted(set(extras) - {"dev", "fuzz", "docs", "examples", "kerberos"})))
EOF
)}
for program in dpkg-deb $python gzip; do
  command -v "$program" >/dev/null || { echo "build_deb: $program is missing: this needs Debian or a relative" >&2; exit 1; }
done
$python -m venv --help >/dev/null 2>&1 || { echo "build_deb: apt-get install python3-venv python3-pip" >&2; exit 1; }

root=$out/root
home=usr/lib/smb3server
rm -rf "$root" "$out/wheel"
mkdir -p "$root/DEBIAN"

# The program, in an environment of its own. Programs that other packages bring are left out.
$python -m pip wheel -q --no-deps --wheel-dir "$out/wheel" .
wheel=$(ls "$out"/wheel/*.whl)
$python -m venv --without-pip "$root/$home"
$python -m pip --python "$root/$home/bin/python3" install -q --no-compile "$wheel[$extras]"
find "$root/$home/bin" -mindepth 1 ! -name 'python*' ! -name smb3server -delete
sed -i "1s,.*,#!/$home/bin/python3 -I," "$root/$home/bin/smb3server"
sed -i '/^command = /d' "$root/$home/pyvenv.cfg"
version=$("$root/$home/bin/python3" -I -c 'import smb3server; print(smb3server.__version__)')
find "$root/$home/lib" -type d \( -name tests -o -name test -o -name SelfTest \) -path '*/site-packages/*' -prune -exec rm -rf {} +
find "$root/$home" -name __pycache__ -prune -exec rm -rf {} +
"$root/$home/bin/python3" -I -m compileall -q -s "$root" --invalidation-mode unchecked-hash "$root/$home/lib" >/dev/null

# What the wheel brings for the system, and the unit.
mkdir -p "$root/usr/share" "$root/usr/bin" "$root/lib/systemd/system" "$root/etc/smb3server" "$root/etc/logrotate.d" "$root/usr/share/doc/smb3server"
for part in man bash-completion zsh fish; do
  mv "$root/$home/share/$part" "$root/usr/share/"
done
rm -rf "$root/$home/share"
mkdir -p "$root/usr/share/zsh/vendor-completions"
mv "$root/usr/share/zsh/site-functions/_smb3server" "$root/usr/share/zsh/vendor-completions/"
rmdir "$root/usr/share/zsh/site-functions"
gzip -9n "$root"/usr/share/man/man1/*.1
ln -s "/$home/bin/smb3server" "$root/usr/bin/smb3server"
for unit in dist/smb3server.service dist/smb3server.socket; do
  sed 's,/usr/local/bin/,/usr/bin/,' "$unit" >"$root/lib/systemd/system/$(basename "$unit")"
done
install -m 640 dist/debian/smb3server.toml "$root/etc/smb3server/smb3server.toml"
install -m 644 dist/debian/logrotate "$root/etc/logrotate.d/smb3server"
install -m 644 dist/debian/copyright "$root/usr/share/doc/smb3server/"
for page in CHANGELOG docs/configuration docs/install docs/upgrade docs/security; do
  gzip -9nc "$page.md" >"$root/usr/share/doc/smb3server/$(basename "$page").md.gz"
done
chmod 644 "$root"/usr/share/doc/smb3server/*

# The package.
install -m 755 dist/debian/postinst dist/debian/prerm dist/debian/postrm "$root/DEBIAN/"
printf '%s\n' /etc/smb3server/smb3server.toml /etc/logrotate.d/smb3server >"$root/DEBIAN/conffiles"
series=$($python -c 'import sys; print("3.%d 3.%d" % (sys.version_info[1], sys.version_info[1] + 1))')
architecture=$(dpkg --print-architecture)
sed -e "s/@VERSION@/$version/" -e "s/@ARCHITECTURE@/$architecture/" -e "s/@SIZE@/$(du -sk "$root" | cut -f1)/" \
  -e "s/@PYTHON@/${series% *}/" -e "s/@NEXT_PYTHON@/${series#* }/" dist/debian/control >"$root/DEBIAN/control"
package=$out/smb3server_${version}_$architecture.deb
dpkg-deb --root-owner-group -Zxz -z2 --build "$root" "$package" >&2
rm -rf "$root" "$out/wheel"
echo "$package"
