#!/bin/bash
# A sweep inside a Slurm job of two parts: a node without GPUs for Ray's head and the sweep's driver, and those that
# train, one Ray node each, with a token of their own.
#
#   sbatch clusters/slurm.sh search_spaces/soft_contrastive.yaml --trials 24
#
# BABELTUNE_HOME is a folder that all nodes share; VENV, if set, an environment with babeltune. Submitted again, the
# same sweep goes on where it was, for instance after the time limit. Change below what the parts ask for; with several
# partitions, name one in each.
#SBATCH --job-name=babeltune
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=4
#SBATCH --mem=16G
#SBATCH --time=12:00:00
#SBATCH --signal=B:TERM@120
#SBATCH hetjob
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --gpus-per-node=1
#SBATCH --mem=64G
#SBATCH --time=12:00:00
set -euo pipefail

: "${BABELTUNE_HOME:?set it to a folder that all nodes share}"
if [[ $# -eq 0 ]]; then
  echo "usage: sbatch clusters/slurm.sh SWEEP_FILE [options of babeltune submit]" >&2
  exit 2
fi
if [[ -n ${VENV:-} ]]; then
  # shellcheck disable=SC1091
  source "$VENV/bin/activate"
fi
here=${SLURM_SUBMIT_DIR:-$PWD}
cd "$here"

# The token is in a file that only its owner reads, not in an argument that `ps` would show.
umask 077
secret=$BABELTUNE_HOME/.ray_token.$SLURM_JOB_ID
python -c 'import secrets; print(secrets.token_hex(32), end="")' > "$secret"
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$secret RAY_USAGE_STATS_ENABLED=0
umask 022

# This runs on the first part's node. Its name may stand for 127.0.1.1, which other nodes cannot reach.
address=$( (hostname --ip-address; hostname --all-ip-addresses) \
  | awk -v RS='[ \n]+' '/^[0-9.]+$/ && !/^127\./ {print; exit}')
port=$((20000 + SLURM_JOB_ID % 20000))
dashboard=$((port + 20000))
tasks=()

finish() {
  trap - EXIT TERM
  for task in "${tasks[@]}"; do kill "$task" 2> /dev/null || true; done
  wait || true
  rm -f "$secret"
}
trap finish EXIT
# Two minutes before the time limit: the sweep stops, every trial keeps its last checkpoint.
trap 'kill -TERM "${sweep:-}" 2> /dev/null || true; wait "${sweep:-}" || true; exit 130' TERM

ray start --head --block --disable-usage-stats --node-ip-address="$address" --port="$port" \
  --dashboard-host=127.0.0.1 --dashboard-port="$dashboard" --num-cpus="$SLURM_CPUS_ON_NODE" --num-gpus=0 &
tasks+=($!)
for _ in $(seq 60); do
  if (exec 3<> "/dev/tcp/$address/$port") 2> /dev/null; then break; fi
  sleep 2
done

count=$(scontrol show hostnames "$SLURM_JOB_NODELIST_HET_GROUP_1" | wc -l)
cpus=${SLURM_JOB_CPUS_PER_NODE_HET_GROUP_1%%(*} # of 8(x2), each node's; srun does not take it from sbatch
srun --het-group=1 --nodes="$count" --ntasks="$count" --ntasks-per-node=1 --cpus-per-task="$cpus" \
  ray start --block --disable-usage-stats --address="$address:$port" --num-cpus="$cpus" &
tasks+=($!)

export BABELTUNE_RAY=$address:$port
babeltune submit "$@" --cluster clusters/slurm.yaml &
sweep=$!
wait "$sweep"
