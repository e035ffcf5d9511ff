#!/usr/bin/env bash
# fresh.sh SUITE [MIRROR]: install the packages of dist into new systems of a Debian or Ubuntu release (bookworm, trixie, jammy,
# noble), and time the way from nothing to a trained classifier. The first system has pip, the second has no Python. Needs
# root, debootstrap and the network; run it after make wheel bundle.
set -euo pipefail
cd "$(dirname "$0")/.."
suite=${1:?name a release, such as bookworm or jammy} mirror=${2:-}
[[ $(id -u) == 0 ]] || { echo "skipped: fresh.sh needs root" >&2; exit 0; }
command -v debootstrap > /dev/null || { echo "skipped: fresh.sh needs debootstrap; on Debian or Ubuntu: sudo apt-get install -y debootstrap" >&2; exit 0; }
wheel=$(echo "$PWD"/dist/rltrain-*.whl) tarball=$(echo "$PWD"/dist/rltrain-*-linux-$(uname -m).tar.xz)
[[ -f $wheel && -f $tarball ]] || { echo "error: want one wheel and one tarball in dist; run make wheel bundle" >&2; exit 1; }
work=$(mktemp -d)
trap 'umount "$work"/*/proc 2> /dev/null || true; rm -rf "$work"' EXIT
mapfile -t network < <(env | grep -iE '^(pip_index|pip_extra|pip_cert|https?_proxy=|no_proxy=|ssl_cert)' || true)

case $suite in
  bullseye | bookworm | trixie | forky | sid) components=main ;;
  *) components=main,universe ;; # Ubuntu has pip there
esac

# system NAME PACKAGE...: a new system with a user, in $work/NAME.
system() {
  local root=$work/$1 packages
  shift
  packages=$(IFS=,; echo "$*")
  debootstrap --variant=minbase --components="$components" --include="$packages" "$suite" "$root" $mirror > "$work/debootstrap.log" 2>&1 ||
    { tail -n 5 "$work/debootstrap.log" >&2; exit 1; }
  mount -t proc proc "$root/proc"
  cp /etc/resolv.conf "$root/etc/" 2> /dev/null || true
  cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/" # of a proxy, too
  chroot "$root" useradd --create-home user
}

# inside NAME COMMAND...: run a command as the user of a system.
inside() {
  local root=$work/$1
  shift
  chroot --userspec=user:user "$root" /usr/bin/env -i "${network[@]}" HOME=/home/user PATH=/home/user/venv/bin:/home/user/rltrain/bin:/usr/bin:/bin LANG=C.UTF-8 \
    /bin/sh -c "cd && $*"
}

# timed NAME WHAT COMMAND...: run a command inside a system and print its seconds and CPU seconds.
timed() {
  local name=$1 what=$2 began cpu
  shift 2
  began=$(date +%s%N)
  TIMEFORMAT='%U %S'
  cpu=$({ time inside "$name" "$@" > "$work/out.txt" 2> "$work/err.txt" || { tail -n 20 "$work/err.txt" > "$work/failed"; }; } 2>&1)
  [[ ! -e $work/failed ]] || { echo "error: $what:" >&2; cat "$work/failed" >&2; exit 1; }
  awk -v what="$what" -v ns="$(($(date +%s%N) - began))" -v cpu="$cpu" 'BEGIN { split(cpu, c); printf "%-28s %6.1f s, CPU %6.1f s\n", what, ns / 1e9, c[1] + c[2] }'
}

size() { echo "on disk: program $(du -sm "$2" | cut -f1) MB, cache $(du -sm "$work/$1/home/user/.cache/rltrain" | cut -f1) MB"; }

system pip ca-certificates python3-pip python3-venv
cp "$wheel" "$work/pip/home/user"
echo "$suite, with pip"
timed pip "python3 -m venv" "python3 -m venv venv"
timed pip "pip install" "pip install --quiet --disable-pip-version-check ./rltrain-*.whl"
timed pip "rltrain setup" "rltrain setup"
timed pip "--mode supervised_then_rl" "rltrain --yes --mode supervised_then_rl"
grep "Change by RL" "$work/out.txt"
size pip "$work/pip/home/user/venv/lib/rltrain"

system bare ca-certificates xz-utils libstdc++6
[[ ! -e $work/bare/usr/bin/python3 ]] || { echo "error: this system has Python" >&2; exit 1; }
cp "$tarball" "$work/bare/home/user"
echo "$suite, without Python"
timed bare "tar xf" "tar xf rltrain-*.tar.xz && rm rltrain-*.tar.xz && mv rltrain-* rltrain"
timed bare "rltrain setup" "rltrain setup"
timed bare "--mode supervised_then_rl" "rltrain --yes --mode supervised_then_rl"
grep "Change by RL" "$work/out.txt"
size bare "$work/bare/home/user/rltrain"
