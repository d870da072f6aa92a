#!/usr/bin/env bash
set -euo pipefail
# shellcheck source=tpu/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

parse_options 'Runs a command to its end, on as many slices as it takes: when the slice is
taken away it is asked for again and set up, and the same command goes on from its
last checkpoint. A command that fails on a slice that is still there ends this.' \
  'name! zone! topology! project spot network subnetwork service-account internal-ips
   runtime-version valid-until wait poll revision extras python packages-until data env grace logs
   restarts --' "$@"

SETTLE=180 # seconds until Google has noted that a slice is gone
told=''    # why Google cannot be asked, as far as it was said

# look: sets SLICE to there, coming (or in repair), taken (or never asked for), or unknown. Says why
# it is unknown, once for each reason.
look() {
  local state
  state=$(queued_state)
  [[ $state != ACTIVE ]] || state=$(state_of tpu-vm state)
  case $state in
    READY) SLICE=there ;;
    ABSENT | FAILED | PREEMPTED | TERMINATED | STOPPING | STOPPED) SLICE=taken ;;
    DELETING | SUSPENDING | SUSPENDED) SLICE=taken ;;
    UNKNOWN*) SLICE=unknown state="Google cannot be asked: ${state#UNKNOWN }" ;;
    *) SLICE=coming ;;
  esac
  [[ $SLICE == unknown ]] || state='' # what is said of it is the reason
  if [[ $state != "$told" ]]; then
    printf '%(%H:%M:%S)T %s\n' -1 "${state:-Google can be asked again}" >&2
  fi
  told=$state
}

# was_taken: after a failure, whether the slice went away rather than the command being wrong.
was_taken() {
  local end=$((SECONDS + SETTLE))
  while ((SECONDS < end)); do
    look
    [[ $SLICE != taken && $SLICE != coming ]] || return 0
    [[ $SLICE != unknown ]] || end=$((SECONDS + SETTLE)) # of which nothing can be concluded
    sleep "${OPT[poll]}"
  done
  return 1
}

rent() {
  if [[ -n ${OPT[dry-run]-} || $(queued_state) != ABSENT ]]; then # what is left of the last one
    forward name zone project
    bash "$TPU_DIR/delete.sh" "${FORWARDED[@]}" --quiet || return 1
  fi
  forward name zone topology project spot network subnetwork service-account internal-ips \
    runtime-version valid-until wait poll
  bash "$TPU_DIR/create.sh" "${FORWARDED[@]}"
}

setup() {
  forward name zone topology project revision extras python packages-until data internal-ips logs
  bash "$TPU_DIR/setup.sh" "${FORWARDED[@]}"
}

launch() {
  local name
  forward name zone topology project grace poll logs internal-ips
  for name in "${ENV_NAMES[@]}"; do
    FORWARDED+=("--env=$name")
  done
  bash "$TPU_DIR/launch.sh" "${FORWARDED[@]}" -- "${COMMAND[@]}"
}

((${#COMMAND[@]})) || die "no command; write it after --, see --help"
[[ " ${COMMAND[*]}" == *" --workdir=gs://"* ]] ||
  die "the command has no --workdir=gs://..., so nothing would outlive the slice"

# once: does what the slice needs next; ends the script when the command has ended.
once() {
  local code=0
  look
  case $SLICE in
    there) ;;
    taken)
      ((rented <= OPT[restarts])) || fail "${OPT[restarts]} slices were taken away; giving up"
      rented=$((rented + 1))
      is_new=1
      rent || return 0 # and see again
      ;;
    coming)
      is_new=1
      return 0
      ;;
    unknown) return 0 ;;
  esac
  if [[ -n $is_new ]]; then
    setup || code=$?
    ((code)) || is_new=''
  fi
  if ((code == 0)); then
    launch || code=$?
    ((code)) || exit 0
  fi
  # 3: no host could be asked. If they are still there, the next launch follows the job.
  ((code == 3)) || was_taken ||
    fail "the command failed on a slice that is still there, and costs: tpu/delete.sh"
}

if [[ -n ${OPT[dry-run]-} ]]; then
  echo "# is the slice there?"
  queued_state
  state_of tpu-vm state
  echo "# if not, and whenever it is taken away:"
  rent
  setup
  echo "# then, and if it fails on a slice that is gone, all of this again:"
  launch
  exit
fi

# Nothing is rented for a command that is wrong.
OPT[dry-run]=1
{ rent && setup && launch; } >/dev/null || exit 2
OPT[dry-run]=''

rented=0
is_new='' # not set up since it came
look
[[ $SLICE != unknown ]] || fail "Google has to answer once before this goes on by itself"
while true; do
  once
  sleep "${OPT[poll]}"
done
