#!/usr/bin/env bash
set -euo pipefail
# shellcheck source=tpu/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

parse_options 'Runs the same command on every host until it ends there, collects what they
printed, and says which host died first. The job does not need this script: after
Ctrl-C or a lost connection the same command follows the job that runs.

Exit code: 0 all hosts ended well, 1 one did not, 2 wrong use, 3 hosts gave no answer.' \
  'name! zone! topology! project env grace poll logs internal-ips stop --' "$@"

read_topology
HOSTS=${TOPOLOGY[hosts]}
STATUS=$LOGS/status.txt # a line for a host: number, state, exit code, end in seconds

check_command() {
  local word
  ((${#COMMAND[@]})) || die "no command; write it after --, see --help"
  for word in "${COMMAND[@]}"; do
    [[ $word != --workdir=* || $word == --workdir=gs://* || $HOSTS == 1 ]] ||
      die "$word: the $HOSTS hosts of ${OPT[topology]} share no disk; use gs://"
  done
}

# send_environment: in a file, as what is on a command line can be read by others.
send_environment() {
  local name file=ENV_FILE
  ((${#ENV_NAMES[@]})) || return 0
  echo "# ENV_FILE has the values of: ${ENV_NAMES[*]}"
  if [[ -z ${OPT[dry-run]-} ]]; then
    file=$(mktemp) # mode 600, which scp keeps
    # shellcheck disable=SC2064  # the name of now
    trap "rm -f $(quote "$file")" EXIT
    for name in "${ENV_NAMES[@]}"; do
      printf '%s=%q\n' "$name" "${!name}" >>"$file"
    done
  fi
  copy_to_hosts "$file" vinejax.env
}

start() {
  local host said answers=' ' others=()
  on_hosts start "bash vinejax/tpu/worker.sh start $(quote "${COMMAND[@]}")"
  [[ -z ${OPT[dry-run]-} ]] || return 0
  for ((host = 0; host < HOSTS; host++)); do
    said=$(answer start "$host")
    answers+="${said:-silent} "
    [[ $said == started ]] || others+=("$host (${said:-no answer})")
  done
  case $answers in
    *' busy '*) fail "another command runs there; end it with tpu/launch.sh --stop" ;;
    *' started '*)
      ((${#others[@]})) || return 0
      tail -n 5 "$LOGS/start/gcloud.txt" >&2 || true
      stop_all
      fail "not started on host ${others[*]}, so ended on the others"
      ;;
    *' following '*) echo "# it runs there already; following it" ;;
    *)
      tail -n 5 "$LOGS/start/gcloud.txt" >&2 || true
      fail "no host answered; has tpu/setup.sh run?"
      ;;
  esac
}

stop_all() {
  on_hosts stop 'bash vinejax/tpu/worker.sh stop'
}

read_status() {
  local host said
  SHOW='' on_hosts status 'bash vinejax/tpu/worker.sh status'
  [[ -z ${OPT[dry-run]-} ]] || return 0
  for ((host = 0; host < HOSTS; host++)); do
    said=$(answer status "$host")
    echo "$host ${said:-silent}"
  done >"$STATUS"
}

# count STATES: hosts in one of them; '|' between names.
count() {
  grep -cE "^[0-9]+ ($1)( |\$)" "$STATUS" || true
}

# follow: until the job has ended on every host, or --grace after something went wrong on one.
follow() {
  local wrong since='' line shown=''
  while true; do
    read_status
    [[ -z ${OPT[dry-run]-} ]] || return 0
    line=$(grep -s '^vinejax-log ' "$LOGS/status/0.log") || true
    [[ $line == "$shown" ]] || echo "${line#vinejax-log }"
    shown=$line
    wrong=$(($(count 'lost|silent|idle') + $(count exited) - $(count 'exited 0')))
    if ((wrong == 0)); then
      since=''
    elif [[ -z $since ]]; then
      since=$SECONDS
      echo "# $wrong of $HOSTS hosts ended or are silent; waiting ${OPT[grace]} s for the others"
    fi
    (($(count 'running|silent'))) || return 0
    [[ -z $since ]] || ((SECONDS - since < OPT[grace])) || return 0
    sleep "${OPT[poll]}"
  done
}

collect() {
  on_hosts log 'bash vinejax/tpu/worker.sh log'
  echo "# what the hosts printed: $LOGS/log/*.log"
}

# first_to_die: the line of the host that ended first with an error of its own. The peers of a dead
# host end by SIGABRT (134) within a minute, so those come last, whatever their clocks say.
first_to_die() {
  awk '$2 == "exited" && $3 != 0 { print ($3 == 134), $4, $1, $3 }' "$STATUS" |
    LC_ALL=C sort -k1,1n -k2,2n | awk 'NR == 1 { print $3, $4, $2 }'
}

report() {
  local silent host code ended
  if [[ $(count 'exited 0') == "$HOSTS" ]]; then
    echo "# done on all $HOSTS hosts"
    return
  fi
  silent=$(awk '$2 ~ /^(silent|lost|idle)$/ { printf " %s (%s)", $1, $2 }' "$STATUS")
  read -r host code ended < <(first_to_die) || true
  if [[ -n $silent ]]; then
    echo "no word of the end from host$silent: taken away, or restarted?" >&2
    [[ -n $host ]] || exit 3
  fi
  if [[ -n $silent && $code == 134 ]]; then
    echo "the others ended by SIGABRT (134), as hosts do that lose another one" >&2
  else
    tail -n 25 "$LOGS/log/$host.log" >&2 || true
    printf 'host %s died first: exit code %s at %(%H:%M:%S)T UTC; its last lines are above\n' \
      "$host" "$code" "${ended%.*}" >&2
    case $code in
      134) echo "SIGABRT is how a host ends when it loses another: did none have a cause?" >&2 ;;
      137) echo "SIGKILL: the host may have run out of memory" >&2 ;;
    esac
  fi
  fail "the job failed; see $STATUS and $LOGS/log"
}

export TZ=UTC
if [[ -n ${OPT[stop]-} ]]; then
  stop_all
  exit
fi
check_command
[[ -n ${OPT[dry-run]-} ]] || mkdir -p "$LOGS"
send_environment
start
follow
[[ -n ${OPT[dry-run]-} ]] || (($(count running) == 0)) || stop_all
collect
[[ -n ${OPT[dry-run]-} ]] || report
