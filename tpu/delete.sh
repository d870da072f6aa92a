#!/usr/bin/env bash
set -euo pipefail
# shellcheck source=tpu/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

parse_options 'Gives the slice back: deletes the queued resource and its TPU. Buckets stay.' \
  'name! zone! project quiet' "$@"

run gcloud compute tpus queued-resources delete "${OPT[name]}" "${WHERE[@]}" --force \
  ${OPT[quiet]:+--quiet}
# What is left here still costs.
run gcloud compute tpus tpu-vm list "${WHERE[@]}"
