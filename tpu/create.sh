#!/usr/bin/env bash
set -euo pipefail
# shellcheck source=tpu/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

parse_options 'Asks for a TPU slice by a queued resource, and waits until it is there.' \
  'name! zone! topology! project spot network subnetwork service-account internal-ips
   runtime-version valid-until wait poll' "$@"

# wait_until_active: returns when the slice is there.
wait_until_active() {
  local state before='' end=$((SECONDS + OPT[wait]))
  while true; do
    state=$(queued_state)
    [[ -z ${OPT[dry-run]-} ]] || return 0
    [[ $state == "$before" ]] || printf '%(%H:%M:%S)T %s\n' -1 "$state"
    before=$state
    case $state in
      ACTIVE) return 0 ;;
      FAILED | DELETING | SUSPENDING | SUSPENDED | ABSENT)
        gcloud compute tpus queued-resources describe "${OPT[name]}" "${WHERE[@]}" >&2 || true
        fail "${OPT[name]} is $state; see the reason above, then tpu/delete.sh and ask again"
        ;;
    esac
    ((OPT[wait] == 0 || SECONDS < end)) ||
      fail "${OPT[name]} is still $state after ${OPT[wait]} s; it stays in the queue"
    sleep "${OPT[poll]}"
  done
}

read_topology
run gcloud compute tpus queued-resources create "${OPT[name]}" --node-id="${OPT[name]}" \
  "${WHERE[@]}" --accelerator-type="${TOPOLOGY[accelerator_type]}" \
  --runtime-version="${OPT[runtime-version]:-${TOPOLOGY[runtime_version]}}" \
  ${OPT[spot]:+--spot} \
  ${OPT[network]:+--network="${OPT[network]}"} \
  ${OPT[subnetwork]:+--subnetwork="${OPT[subnetwork]}"} \
  ${OPT[service-account]:+--service-account="${OPT[service-account]}"} \
  ${OPT[internal-ips]:+--internal-ips} \
  ${OPT[valid-until]:+--valid-until-duration="${OPT[valid-until]}"}
wait_until_active
echo "# ${OPT[name]}: ${OPT[topology]}, ${TOPOLOGY[chips]} chips on ${TOPOLOGY[hosts]} hosts"
