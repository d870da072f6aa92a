#!/usr/bin/env bash
set -euo pipefail
# shellcheck source=tpu/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

parse_options 'Installs one commit of this checkout on all hosts, all with the same packages.' \
  'name! zone! topology! project revision extras python packages-until data internal-ips logs' "$@"

# check_versions: every host has installed, and the same.
check_versions() {
  local host line first='' missing=()
  for ((host = 0; host < $1; host++)); do
    line=$(answer setup "$host")
    if [[ $line != versions\ * ]]; then
      missing+=("$host")
    elif [[ -z $first ]]; then
      first=$line
    elif [[ $line != "$first" ]]; then
      fail "host $host has other packages. It: ${line#versions }. Others: ${first#versions }"
    fi
  done
  if ((${#missing[@]})); then
    tail -n 15 "$LOGS/setup/${missing[0]}.log" "$LOGS/setup/gcloud.txt" >&2 || true
    fail "not installed on host ${missing[*]} of $1; the ends of its logs are above"
  fi
  echo "# all $1 hosts: ${first#versions }"
}

read_topology
[[ -d ${OPT[data]:-.} ]] || die "--data=${OPT[data]}: no such folder"
commit=$(git -C "$ROOT" rev-parse --verify --quiet "${OPT[revision]}^{commit}") ||
  die "--revision=${OPT[revision]}: this checkout has no such commit"
published=${OPT[packages-until]:-$(git -C "$ROOT" show -s --format=%cI "$commit")}
git -C "$ROOT" diff --quiet HEAD || echo "note: changes that are not committed stay here" >&2

remote='rm -rf vinejax && mkdir vinejax && tar -xzf vinejax.tar.gz -C vinejax'
run mkdir -p "$LOGS"
run git --git-dir="$ROOT/.git" archive --format=tar.gz --output="$LOGS/vinejax.tar.gz" "$commit"
copy_to_hosts "$LOGS/vinejax.tar.gz" vinejax.tar.gz
if [[ -n ${OPT[data]-} ]]; then
  folder=$(realpath "${OPT[data]}")
  run tar -czf "$LOGS/data.tar.gz" -C "${folder%/*}" "${folder##*/}"
  copy_to_hosts "$LOGS/data.tar.gz" data.tar.gz
  remote+=' && mkdir -p data && tar -xzf data.tar.gz -C data'
fi
remote+=" && bash vinejax/tpu/worker.sh install $(
  quote "${OPT[extras]}" "$published" "${OPT[python]}"
)"
on_hosts setup "$remote"
[[ -n ${OPT[dry-run]-} ]] || check_versions "${TOPOLOGY[hosts]}"
