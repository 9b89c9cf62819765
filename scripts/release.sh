#!/usr/bin/env bash
# Makes everything that a release has, into target/release-files:
#   scripts/release.sh                     builds the program first, which takes minutes
#   scripts/release.sh --program FILE      takes a program that is built already
# an archive (program, manual, completions, unit), a Debian package, a container image, the worker libraries for
# Python and TypeScript, the bill of materials, and SHA256SUMS. The package is installed, started, upgraded and
# purged in a scratch root, the image's files are started, and the libraries are installed and imported, before
# anything is handed out.
#
# Needs what a build needs, dpkg, Python with venv, and Node with npm. cargo-deb and cargo-cyclonedx are built below
# target/tools; buildah is Debian's. What cannot be made is named at the end, and the script ends non-zero, unless
# --allow-missing.
set -euo pipefail
cd "$(dirname "$0")/.."
export CARGO_TERM_COLOR="${CARGO_TERM_COLOR:-never}"

program="" allow_missing=false
while (($#)); do
  case "$1" in
    --program) program="$(realpath "$2")"; shift 2 ;;
    --allow-missing) allow_missing=true; shift ;;
    *) echo "unknown word $1; the head of this file says what there is" >&2; exit 2 ;;
  esac
done

target="$(realpath -m "${CARGO_TARGET_DIR:-target}")"
version="$(sed -nE '/^\[package\]/,/^\[/s/^version = "(.*)"/\1/p' Cargo.toml)"
triple="$(rustc -vV | sed -n 's/^host: //p')"
out="$target/release-files" staged="target/staged" tools="$target/tools"
name="moonswarm-$version-$triple"
missing=()
# A build that is made twice has the same times.
SOURCE_DATE_EPOCH="$(git log -1 --format=%ct 2>/dev/null || echo 0)"
export SOURCE_DATE_EPOCH
rm -rf "$out" "$staged"
mkdir -p "$out" "$staged/man" "$staged/completions"
say() { echo "── $*"; }

# tool NAME VERSION: installs a tool of Cargo below target/tools.
tool() {
  test -x "$tools/bin/$1" ||
    CARGO_PROFILE_DEV_DEBUG=0 cargo install --locked --debug --quiet --version "$2" --root "$tools" "$1"
}

# The C++ library is linked into the program, so that it runs where none is installed. The flags would make
# Cargo build everything anew for the tests, so this has a directory of its own.
if [[ -z "$program" ]]; then
  say "building $name"
  gcc_dir="$(dirname "$("${CXX:-c++}" -print-file-name=libstdc++.a)")"
  CXXSTDLIB="static=stdc++" RUSTFLAGS="-L native=$gcc_dir" \
    cargo build --release --locked --bin moonswarm --target-dir "$target/for-release"
  program="$target/for-release/release/moonswarm"
fi
cp "$program" "$staged/moonswarm"
if command -v ldd >/dev/null && ldd "$staged/moonswarm" | grep -q 'libstdc++'; then
  echo "the program needs libstdc++ at run time" >&2
  exit 1
fi

say "manual and completions"
"$staged/moonswarm" manual "$staged/man" 2>/dev/null
gzip -9n "$staged"/man/*.1
"$staged/moonswarm" completions bash >"$staged/completions/moonswarm.bash"
"$staged/moonswarm" completions zsh >"$staged/completions/_moonswarm"
"$staged/moonswarm" completions fish >"$staged/completions/moonswarm.fish"

say "archive"
mkdir "$staged/$name"
cp -r "$staged/moonswarm" "$staged/man" "$staged/completions" README.md CHANGELOG.md LICENSE-* deploy "$staged/$name/"
tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -C "$staged" -c "$name" |
  gzip -9n >"$out/$name.tar.gz"

say "bill of materials"
if tool cargo-cyclonedx 0.5.9; then
  "$tools/bin/cargo-cyclonedx" cyclonedx --format json --spec-version 1.5 --all-features --target "$triple" \
    --override-filename bom >/dev/null
  mv bom.json "$out/moonswarm-$version.cdx.json"
else
  missing+=("the bill of materials: cargo-cyclonedx could not be installed")
fi

# Both registries want the licences within the package.
for library in python typescript; do
  cp -r "clients/$library" "$staged/$library"
  cp LICENSE-* "$staged/$library/"
done
say "worker library for Python"
if python3 -c "import ensurepip" 2>/dev/null && python3 -m venv "$tools/python" &&
  "$tools/python/bin/pip" install --quiet --disable-pip-version-check build; then
  "$tools/python/bin/python" -m build --outdir "$out" "$staged/python" >"$staged/python.log" || { cat "$staged/python.log" >&2; exit 1; }
  python3 -m venv "$staged/wheel"
  "$staged/wheel/bin/pip" install --quiet --disable-pip-version-check --no-index "$out"/moonswarm_worker-*.whl
  "$staged/wheel/bin/python" -c "import moonswarm_worker; print('moonswarm-worker', moonswarm_worker.__version__)"
else
  missing+=("the worker library for Python: python3 with venv, or the registry, is not there")
fi
say "worker library for TypeScript"
if command -v npm >/dev/null && (cd "$staged/typescript" && npm install --silent --no-audit --no-fund); then
  (cd "$staged/typescript" && npm pack --silent --pack-destination "$out" >/dev/null)
  mkdir "$staged/npm"
  (cd "$staged/npm" && npm install --silent --no-audit --no-fund --offline "$out"/moonswarm-worker-*.tgz &&
    node --input-type=module -e 'import { Worker } from "moonswarm-worker"; console.log("moonswarm-worker for Node:", typeof Worker)')
else
  missing+=("the worker library for TypeScript: node and npm, or the registry, are not there")
fi

say "Debian package"
if command -v dpkg-deb >/dev/null && tool cargo-deb 3.8.0; then
  "$tools/bin/cargo-deb" --no-build --no-strip --quiet --output "$out/"
  if ((EUID == 0)); then
    scripts/package-test.sh "$out"/moonswarm_*.deb
  else
    missing+=("the test of the Debian package: only root may make a scratch root")
  fi
else
  missing+=("the Debian package: dpkg is not there, or cargo-deb could not be installed")
fi

say "container image"
# The program with the libraries that it names, and nothing else.
room="$target/container"
rm -rf "$room"
mkdir -p "$room/root/usr/bin" "$room/root/etc/ssl/certs" "$room/data" "$room/root/tmp"
cp deploy/container/Containerfile "$room/"
cp "$staged/moonswarm" "$room/root/usr/bin/"
ldd "$staged/moonswarm" | grep -oE '/[^ ]+' | while read -r library; do
  install -D "$(realpath "$library")" "$room/root$library"
done
cp -L /etc/ssl/certs/ca-certificates.crt "$room/root/etc/ssl/certs/" 2>/dev/null ||
  missing+=("certificates in the image: ca-certificates is not installed")
echo 'moonswarm:x:65532:65532::/data:/usr/bin/moonswarm' >"$room/root/etc/passwd"
echo 'moonswarm:x:65532:' >"$room/root/etc/group"
echo 'hosts: files dns' >"$room/root/etc/nsswitch.conf"
chmod 1777 "$room/root/tmp"
if ((EUID == 0)); then
  scripts/container-test.sh "$room/root"
else
  missing+=("the start of the image's files: only root may change the root directory")
fi
if command -v buildah >/dev/null; then
  image=(buildah --storage-driver vfs --root "$room/storage" --runroot "$room/run")
  "${image[@]}" bud --quiet --isolation chroot --format docker --timestamp "$SOURCE_DATE_EPOCH" -t "moonswarm:$version" "$room" >/dev/null
  "${image[@]}" push --quiet "moonswarm:$version" "docker-archive:$out/moonswarm-$version-image.tar:moonswarm:$version"
  gzip -9n "$out/moonswarm-$version-image.tar"
else
  missing+=("the container image: buildah is not installed")
fi

(cd "$out" && sha256sum -- * >SHA256SUMS)
say "in $out"
ls -l "$out"
for what in ${missing[@]+"${missing[@]}"}; do echo "   not made: $what"; done
$allow_missing || ((${#missing[@]} == 0))
