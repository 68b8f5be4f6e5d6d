#!/bin/bash
# A sweep inside a Slurm job of two parts: a node without GPUs for Ray's head and the sweep's driver, and those that
# train, one Ray node each, with a token of their own.
#
#   sbatch clusters/slurm.sh search_spaces/soft_contrastive.yaml --trials 24
#
# BABELTUNE_HOME is a folder that all nodes share; VENV, if set, an environment with babeltune. Before the time limit,
# the job stops the sweep and asks Slurm to run it again; after a preemption Slurm does so by itself. The sweep goes on
# where it was. Change below what the parts ask for; with several partitions, name one in each.
#SBATCH --job-name=babeltune
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=4
#SBATCH --mem=16G
#SBATCH --time=12:00:00
#SBATCH --signal=B:TERM@120
#SBATCH --requeue
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

# Each sweep has an MLflow database, because SQLite in a shared folder does not bear writers on several machines. Set
# BABELTUNE_MLFLOW to a server to have all sweeps in one place.
name=$(basename "$1")
name=${name%.*}-$(printf '%s\n' "$@" | cksum | cut -d ' ' -f 1)
export BABELTUNE_MLFLOW=${BABELTUNE_MLFLOW:-sqlite:///$BABELTUNE_HOME/mlflow/$name/mlflow.db}

# The token is in a file that only its owner reads, not in an argument that `ps` would show.
# It is a new file: one that somebody else has put there could be read.
secret=$BABELTUNE_HOME/.ray_token.$SLURM_JOB_ID
rm -f "$secret"
(umask 077; set -o noclobber; od -An -N32 -tx1 /dev/urandom | tr -d ' \n' > "$secret")
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$secret RAY_USAGE_STATS_ENABLED=0

# Ray opens its folder to all users of a node, so it lies in one that only this user enters.
RAY_TMPDIR=$(mktemp -d "${RAY_TMPDIR:-/tmp}/XXXXXX")
export RAY_TMPDIR

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
  rm -rf "$secret" "$RAY_TMPDIR"
}
trap finish EXIT

# Two minutes before the time limit: the sweep stops, and every trial keeps its state. Slurm runs the job again, unless
# the sweep has just finished or somebody has cancelled the job.
again() {
  trap - TERM
  kill -TERM "${sweep:-}" 2> /dev/null || true
  if [[ -n ${sweep:-} ]] && wait "$sweep"; then exit 0; fi
  if [[ $(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%T | head -n 1) == RUNNING ]]; then
    scontrol requeue "$SLURM_JOB_ID" || true
  fi
  exit 130
}
trap again TERM

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
  sh -c 'mkdir -p -m 700 "$RAY_TMPDIR" && exec "$@"' sh \
  ray start --block --disable-usage-stats --address="$address:$port" --num-cpus="$cpus" &
tasks+=($!)

export BABELTUNE_RAY=$address:$port
babeltune submit "$@" --cluster clusters/slurm.yaml &
sweep=$!
wait "$sweep"
