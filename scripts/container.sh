#!/usr/bin/env bash
# container.sh: build the image of Containerfile with buildah, from images that debootstrap and this machine's Go make in the
# place of those that it names, and run rltrain in it as docs/install.md does. Needs root and the network, but no registry.
set -euo pipefail
cd "$(dirname "$0")/.."
skip() {
  echo "skipped: container.sh needs $1" >&2
  exit 0
}
[[ $(id -u) == 0 ]] || skip root
for tool in buildah debootstrap; do
  command -v "$tool" > /dev/null || skip "$tool; on Debian or Ubuntu: sudo apt-get install -y buildah debootstrap"
done
work=$(mktemp -d)
buildah=(buildah --root "$work/storage" --runroot "$work/run")
trap '"${buildah[@]}" rm --all > /dev/null || true; rm -rf "$work"' EXIT
export BUILDAH_ISOLATION=chroot

quietly() { # quietly COMMAND...: show what a command prints only if it fails.
  "$@" > "$work/log.txt" 2>&1 || { tail -n 30 "$work/log.txt" >&2; return 1; }
}

# base IMAGE: make an image that Containerfile starts from.
base() {
  local image=$1 suite packages=ca-certificates container root
  local path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
  suite=$(grep -oE 'bookworm|trixie' <<< "$image") || { echo "error: container.sh cannot make $image" >&2; exit 1; }
  [[ $image != */golang:* ]] || packages+=,curl,g++,git,make,pkg-config
  container=$("${buildah[@]}" from scratch)
  root=$("${buildah[@]}" mount "$container")
  quietly debootstrap --variant=minbase --include="$packages" "$suite" "$root"
  # This machine may reach the network through a proxy with a certificate of its own.
  cp /etc/ssl/certs/ca-certificates.crt "$root/usr/local/share/ca-certificates/host.crt"
  quietly chroot "$root" update-ca-certificates
  rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/archives/*.deb
  if [[ $image == */golang:* ]]; then
    cp -a "$(go env GOROOT)" "$root/usr/local/go"
    path=/go/bin:/usr/local/go/bin:$path
    "${buildah[@]}" config --env GOPATH=/go --env GOTOOLCHAIN=local "$container"
  fi
  "${buildah[@]}" config --env PATH="$path" --cmd bash "$container"
  "${buildah[@]}" umount "$container" > /dev/null
  "${buildah[@]}" commit --quiet --rm "$container" "$image" > /dev/null
}

for image in $(sed -n 's/^FROM \([^ ]*\).*/\1/p' Containerfile); do
  echo "$image from Debian's packages"
  base "$image"
done
echo "buildah build -t rltrain ."
quietly "${buildah[@]}" build --pull=never --tag rltrain .
"${buildah[@]}" images --format '{{.Name}} {{.Size}}' | grep /rltrain
container=$("${buildah[@]}" from --pull=never rltrain)
"${buildah[@]}" run "$container" -- rltrain version
[[ $("${buildah[@]}" run "$container" -- id -un) == rltrain ]] || { echo "error: the container does not run as rltrain" >&2; exit 1; }
"${buildah[@]}" run "$container" -- rltrain --mode supervised_then_rl > "$work/train.txt" 2> "$work/train.err" ||
  { tail -n 20 "$work/train.err" >&2; exit 1; }
grep "Change by RL" "$work/train.txt"
