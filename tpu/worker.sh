#!/usr/bin/env bash
# Runs on a host of a slice; the other scripts call it through ssh and read the lines it marks.
set -euo pipefail

SAVE_S=300 # of jobset.yaml, too
HELP="usage: worker.sh install EXTRAS DATE PYTHON | start COMMAND... | status | log | stop

install  a virtual environment in ~/vinejax/.venv with packages published before DATE
start    COMMAND in ~/vinejax, detached; the same one again follows what runs
status   running, exited CODE TIME, lost (ended without a word, as after a reboot) or idle
log      what the job has printed
stop     the job, with all its processes; it has $SAVE_S seconds to save"

UV=0.13.9 # https://github.com/astral-sh/uv: it brings the Python that the TPU images lack
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
JOB=~/vinejax-job

say() {
  echo "vinejax-worker $*"
}

install() {
  local versions
  cd "$ROOT"
  python3 -m pip install --quiet --user "uv==$UV"
  ~/.local/bin/uv venv --quiet --python "$3" .venv
  ~/.local/bin/uv pip install --quiet --python .venv/bin/python --exclude-newer "$2" -e ".[$1]"
  versions=$(.venv/bin/python -c '
import importlib.metadata as installed, platform
names = ("vinejax", "jax", "jaxlib", "libtpu", "flax", "orbax-checkpoint")
have = {each.metadata["Name"]: each.version for each in installed.distributions()}
print("python", platform.python_version(), *(f"{name} {have.get(name)}" for name in names))
')
  say "versions $versions revision $(<.revision)"
}

state() {
  if [[ -f $JOB/end ]]; then
    echo "exited $(<"$JOB/end")"
  elif [[ ! -f $JOB/pid ]]; then
    echo idle
  elif grep -aqs supervise "/proc/$(<"$JOB/pid")/cmdline"; then # not another with its number
    echo running
  else
    echo lost
  fi
}

start() {
  if [[ $(state) == running ]]; then
    rm -f ~/vinejax.env
    if [[ $(<"$JOB/command") == "${*@Q}" ]]; then say following; else say busy; fi
    return
  fi
  rm -rf "$JOB"
  mkdir -p "$JOB"
  echo "${*@Q}" >"$JOB/command"
  [[ ! -f ~/vinejax.env ]] || mv ~/vinejax.env "$JOB/env"
  setsid nohup bash "$ROOT/tpu/worker.sh" supervise "$@" >"$JOB/log" 2>&1 </dev/null &
  echo $! >"$JOB/pid"
  say started
}

# Not for people: runs the command and keeps how it ended.
supervise() {
  local code=0
  cd "$ROOT"
  if [[ -f $JOB/env ]]; then
    set -a
    # shellcheck source=/dev/null
    source "$JOB/env"
    set +a
    rm "$JOB/env"
  fi
  PATH=$ROOT/.venv/bin:$PATH "$@" || code=$?
  echo "$code $(date +%s.%N)" >"$JOB/end.part"
  mv "$JOB/end.part" "$JOB/end" # so that nobody reads half of it
}

stop() {
  local pid waited
  if [[ $(state) == running ]]; then
    pid=$(<"$JOB/pid")
    kill -TERM -- "-$pid" # the whole session: the command and what it started
    for ((waited = 0; waited < 5 * SAVE_S; waited++)); do
      kill -0 -- "-$pid" 2>/dev/null || break
      sleep 0.2
    done
    kill -KILL -- "-$pid" 2>/dev/null || true
    [[ -f $JOB/end ]] || echo "143 $(date +%s.%N)" >"$JOB/end"
  fi
  say "$(state)"
}

case ${1-} in
  install | start | supervise | stop) "$@" ;;
  status)
    [[ ! -s $JOB/log ]] || echo "vinejax-log $(tail -c 400 "$JOB/log" | tr '\r' '\n' | tail -n 1)"
    say "$(state)"
    ;;
  log) cat "$JOB/log" ;;
  --help) echo "$HELP" ;;
  *) echo "$HELP" >&2 && exit 2 ;;
esac
