# What the scripts of this folder share: options, printing what is run, and the hosts of a slice.
# shellcheck shell=bash

if ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] < 404)); then
  echo "error: these scripts need bash 4.4 or newer; this is $BASH_VERSION" >&2
  exit 2
fi

TPU_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck disable=SC2034  # for the scripts
ROOT=${TPU_DIR%/*}
exec 3>&1 # where commands are shown, also from inside $(...)

# Every option of every script: what its value is called ('' for a flag), and what it does.
declare -A VALUE=(
  [name]=NAME [zone]=ZONE [topology]=TOPOLOGY [project]=PROJECT [spot]='' [network]=NETWORK
  [subnetwork]=SUBNETWORK [service-account]=EMAIL [internal-ips]='' [runtime-version]=IMAGE
  [valid-until]=DURATION [wait]=SECONDS [poll]=SECONDS [revision]=REVISION [extras]=LIST
  [python]=VERSION [packages-until]=DATE [data]=FOLDER [env]=VARIABLE [grace]=SECONDS
  [logs]=FOLDER [stop]='' [restarts]=COUNT [quiet]='' [dry-run]='' [help]=''
)
declare -A HELP=(
  [name]='of the TPU, and of its queued resource'
  [zone]='Google Cloud zone, e.g. us-west4-a'
  [topology]='chips, e.g. v5e:16x16; the accelerator type to rent follows from it'
  [project]='Google Cloud project, if not the one gcloud is set to'
  [spot]='ask for a spot slice: cheaper, and taken away when others want it'
  [network]='VPC network of the hosts'
  [subnetwork]='of that network'
  [service-account]='that the hosts act as; it has to reach the bucket'
  [internal-ips]='hosts without external addresses; install then needs Cloud NAT'
  [runtime-version]='image of the TPU VMs, if not the one that goes with the topology'
  [valid-until]='leave the queue after so long, e.g. 6h'
  [wait]='give up waiting for the slice after so long; 0: never'
  [poll]='between two looks at the state'
  [revision]='commit to install: a hash, a tag or a branch of this checkout'
  [extras]='of vinejax to install, e.g. tpu,gcs,wandb'
  [python]='Python to install with'
  [packages-until]='ignore packages published later; the date of the commit by default'
  [data]='local folder to copy to ~/data of every host'
  [env]='pass this environment variable on, in a file of your own; repeatable'
  [grace]='after the first death, wait so long for the other hosts to end'
  [logs]='local folder for what the hosts print; runs/tpu/NAME by default'
  [stop]='end the job instead of starting one'
  [restarts]='give up after so many new slices'
  [quiet]='do not ask'
  [dry-run]='print every command and run none'
  [help]='print this'
)
declare -A OPT=(
  [wait]=0 [poll]=30 [revision]=HEAD [extras]='tpu,gcs' [python]=3.12 [grace]=90 [restarts]=10
)
COMMAND=()   # what follows --
ENV_NAMES=() # of --env

# die MESSAGE: the command is wrong. fail MESSAGE: what it asked for did not work.
die() {
  echo "error: $*" >&2
  exit 2
}
fail() {
  echo "error: $*" >&2
  exit 1
}

# quote WORD...: one line that a shell reads as these words again.
quote() {
  local word line=
  for word; do
    [[ $word =~ ^[A-Za-z0-9_./:=,@%+-]+$ ]] || word=${word@Q}
    line+=${line:+ }$word
  done
  printf '%s\n' "$line"
}

# run WORD...: shows the command, and runs it unless --dry-run. With SHOW= it is not shown, for
# what is repeated; --dry-run shows that, too.
run() {
  [[ -z ${SHOW-1} && -z ${OPT[dry-run]-} ]] || echo "+ $(quote "$@")" >&3
  [[ -n ${OPT[dry-run]-} ]] || "$@" 3>&- # what it leaves behind must not hold our output open
}

# print_help SUMMARY WORD...: the words of parse_options' TAKES.
print_help() {
  local summary=$1 words=("${@:2}" dry-run help) name form required=''
  for name in "${words[@]}"; do
    [[ $name != *! ]] || required+=" --${name%!}=${VALUE[${name%!}]}"
  done
  [[ " ${words[*]} " != *' -- '* ]] || required+=' [options] -- COMMAND...'
  printf 'usage: tpu/%s%s\n\n%s\n\n' "${0##*/}" "$required" "$summary"
  for name in "${words[@]}"; do
    [[ $name != -- ]] || continue
    name=${name%!}
    form=--$name${VALUE[$name]:+=${VALUE[$name]}}
    printf '  %-26s %s%s\n' "$form" "${HELP[$name]}" "${OPT[$name]:+ (${OPT[$name]})}"
  done
}

# parse_options SUMMARY TAKES WORD...: fills OPT, ENV_NAMES and COMMAND.
#
# TAKES lists options, the required ones with '!'; '--' says that a command follows the options.
parse_options() {
  local summary=$1 takes words word name
  read -ra words -d '' <<<"$2" || true # it may have several lines
  takes=" ${words[*]//!/} dry-run "
  shift 2
  for word; do
    [[ $word != -- ]] || break
    [[ $word != --help ]] || { print_help "$summary" "${words[@]}" && exit 0; }
  done
  while (($#)); do
    word=$1
    shift
    if [[ $word == -- && $takes == *' -- '* ]]; then
      # shellcheck disable=SC2034  # for the script
      COMMAND=("$@")
      break
    fi
    name=${word#--}
    name=${name%%=*}
    [[ $word =~ ^--[a-z-]+(=.*)?$ && $takes == *" $name "* ]] ||
      die "${0##*/} does not take ${word@Q}; see --help"
    if [[ -z ${VALUE[$name]} ]]; then
      [[ $word != *=* ]] || die "--$name takes no value"
      OPT[$name]=1
    else
      [[ $word == *=?* ]] || die "--$name takes a value: --$name=${VALUE[$name]}"
      OPT[$name]=${word#*=}
    fi
    [[ $name != env ]] || ENV_NAMES+=("${OPT[env]}")
  done
  check_options "${words[@]}"
}

check_options() {
  local name
  for name; do
    [[ $name != *! || -n ${OPT[${name%!}]-} ]] ||
      die "--${name%!}=${VALUE[${name%!}]} is missing; see --help"
    [[ ! ${VALUE[${name%!}]-} =~ ^(SECONDS|COUNT)$ || ${OPT[$name]} =~ ^[0-9]+$ ]] ||
      die "--$name=${OPT[$name]}: not a whole number"
  done
  for name in "${ENV_NAMES[@]}"; do
    [[ $name =~ ^[A-Za-z_][A-Za-z0-9_]*$ ]] || die "--env takes a variable's name, not its value"
    [[ -v $name || -n ${OPT[dry-run]-} ]] || die "--env=$name: there is no such variable here"
  done
  WHERE=(--zone="${OPT[zone]}" ${OPT[project]:+--project="${OPT[project]}"})
  LOGS=${OPT[logs]:-runs/tpu/${OPT[name]}}
}

# forward OPTION...: sets FORWARDED to those that were given or have a default.
forward() {
  local name
  FORWARDED=(${OPT[dry-run]:+--dry-run})
  for name; do
    if [[ -n ${OPT[$name]-} ]]; then
      FORWARDED+=("--$name${VALUE[$name]:+=${OPT[$name]}}")
    fi
  done
}

# read_topology: fills TOPOLOGY with what renting.py knows of --topology.
declare -A TOPOLOGY
read_topology() {
  local lines field value
  lines=$("${PYTHON:-python3}" "$TPU_DIR/renting.py" "${OPT[topology]}")
  while read -r field value; do
    # shellcheck disable=SC2034  # for the script
    TOPOLOGY[$field]=$value
  done <<<"$lines"
}

# state_of GROUP FIELD: state of what gcloud compute tpus GROUP calls by our name. ABSENT: there is
# none. UNKNOWN, with a reason after it: Google could not be asked, which says nothing about it.
state_of() {
  local said reason
  if said=$(SHOW='' run gcloud compute tpus "$1" describe "${OPT[name]}" "${WHERE[@]}" \
    --format="value($2)" 2>&1); then
    grep -xE '[A-Z_]{2,}' <<<"$said" || true # and no warnings
  elif [[ $said == *NOT_FOUND* ]]; then
    echo ABSENT
  else
    reason=$(grep -m 1 '^ERROR' <<<"$said") || reason=${said##*$'\n'}
    echo "UNKNOWN ${reason:-gcloud failed without a word}"
  fi
}

queued_state() {
  state_of queued-resources state.state
}

# copy_to_hosts FILE NAME: into the home folder of every host.
copy_to_hosts() {
  run gcloud compute tpus tpu-vm scp "$1" "${OPT[name]}:$2" "${WHERE[@]}" --worker=all \
    ${OPT[internal-ips]:+--internal-ip} --quiet
}

# on_hosts STEP COMMAND: runs it on all hosts at once; what host N prints is in LOGS/STEP/N.log.
#
# Its status is of no use: gcloud does not say whose it is. The callers read the files.
on_hosts() {
  local not_for_ever=(--ssh-flag=-oConnectTimeout=20 --ssh-flag=-oServerAliveInterval=15)
  local words=(gcloud compute tpus tpu-vm ssh "${OPT[name]}" "${WHERE[@]}" --worker=all
    ${OPT[internal-ips]:+--internal-ip} --quiet "${not_for_ever[@]}"
    --command="$2" --output-directory="$LOGS/$1")
  if [[ -n ${OPT[dry-run]-} ]]; then
    run "${words[@]}"
  else
    rm -rf "${LOGS:?}/$1"
    mkdir -p "$LOGS/$1"
    run "${words[@]}" >"$LOGS/$1/gcloud.txt" 2>&1 || true
  fi
}

# answer STEP HOST: what worker.sh said there, without its mark; nothing if it did not.
answer() {
  [[ ! -f $LOGS/$1/$2.log ]] || sed -n 's/^vinejax-worker //p' "$LOGS/$1/$2.log" | tail -n 1
}
