#!/bin/sh
# The files of the image: rootfs.sh FOLDER WHEEL[EXTRAS]. Runs in the first stage of the Containerfile, as root.
# Debian's packages of Python and what it needs are unpacked, without their scripts and without what only
# installs packages; then the wheel and its dependencies as wheels. No shell, no package manager, no compiler
# is in the result. Scanners find the packages in /var/lib/dpkg/status.d.
set -eu
root=$1
wheel=$2

# without these Python runs as well: package management, Perl, the terminal's data
unwanted='^(dpkg|tar|perl-base|perl|debconf|gcc-[0-9]+-base|openssl|mawk|media-types|readline-common|libacl1|libmd0|libselinux1|libpcre2-8-0|sensible-utils|libdb5.3.*|python3|python3-minimal|python3\.[0-9]+)$'

# first the folders that Debian's merged /usr has links for
mkdir -p "$root/usr/lib" "$root/usr/lib64" "$root/usr/bin" "$root/proc" "$root/dev" "$root/sys" "$root/etc"
ln -s usr/lib "$root/lib"
ln -s usr/lib64 "$root/lib64"
ln -s usr/bin "$root/bin"

mkdir -p /tmp/debs/partial /tmp/lists/partial
: > /tmp/status
apt-get -qq update
apt-get -qqy install --download-only --no-install-recommends -o Dir::State::status=/tmp/status \
    -o Dir::Cache::archives=/tmp/debs python3-minimal libpython3-stdlib libstdc++6 ca-certificates tzdata netbase base-files
mkdir -p "$root/var/lib/dpkg/status.d"
for deb in /tmp/debs/*.deb; do
    name=$(dpkg-deb -f "$deb" Package)
    if echo "$name" | grep -qE "$unwanted"; then continue; fi
    dpkg-deb -x "$deb" "$root"
    dpkg-deb -f "$deb" > "$root/var/lib/dpkg/status.d/$name"
done
python=$(basename "$(find "$root/usr/bin" -name "python3.*")")
ln -sf "$python" "$root/usr/bin/python3"

mkdir -p "$root/etc/ssl/certs" "$root/home/tidemill" "$root/var/lib/tidemill" "$root/tmp"
find "$root/usr/share/ca-certificates" -name '*.crt' -exec cat {} + > "$root/etc/ssl/certs/ca-certificates.crt"
printf 'root:x:0:0:root:/root:/sbin/nologin\ntidemill:x:65532:65532::/home/tidemill:/sbin/nologin\n' > "$root/etc/passwd"
printf 'root:x:0:\ntidemill:x:65532:\n' > "$root/etc/group"
chown -R 65532:65532 "$root/home/tidemill" "$root/var/lib/tidemill"
chmod 1777 "$root/tmp"

site=$root/usr/local/lib/$python/dist-packages
python3 -m pip install -q --disable-pip-version-check --root-user-action ignore --no-compile --only-binary :all: \
    --python-version "${python#python}" --target "$site" "$wheel"
rm -rf "${site:?}/bin"
find "$site" -type d -name tests -prune -exec rm -rf {} +
find "$site" -type f \( -name '*.pyi' -o -name '*.pyx' -o -name '*.pxd' -o -name '*.c' -o -name '*.h' -o -name '*.a' \) -delete
find "$site" -type f -name '*.so*' -exec strip --strip-debug {} + 2> /dev/null || true  # 40 MB of the dependencies'
mkdir -p "$root/usr/local/bin"
printf '#!/usr/bin/%s -P\nfrom tidemill.__main__ import main\n\nraise SystemExit(main())\n' "$python" > "$root/usr/local/bin/tidemill"
chmod 755 "$root/usr/local/bin/tidemill"
# the root is read-only where it runs: without bytecode every start would compile
chroot "$root" "/usr/bin/$python" -m compileall -q "/usr/lib/$python" "/usr/local/lib/$python/dist-packages/tidemill"
chroot "$root" "/usr/bin/$python" -m compileall -qq "/usr/local/lib/$python" || true  # templates of packages are no Python
chroot "$root" "/usr/bin/$python" -c "import bz2, ctypes, curses, lzma, readline, sqlite3, ssl, uuid, tidemill.backends.native"
chroot "$root" /usr/local/bin/tidemill --version
rm -rf "$root/usr/share/doc" "$root/usr/share/man" "$root/usr/share/locale" "$root/usr/share/lintian" \
    "$root/usr/share/info" "$root/usr/share/bug" "$root/usr/share/python3" "$root"/usr/lib/*/gconv \
    "$root/usr/lib/$python/test" "$root/usr/lib/$python/pydoc_data"
