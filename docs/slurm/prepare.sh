#!/bin/bash
# One stage of webtext on four nodes: `sbatch docs/slurm/prepare.sh`; submit it again to resume.
#SBATCH --job-name=clean
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --cpus-per-task=16
#SBATCH --time=4:00:00
#SBATCH --requeue
set -euo pipefail

# On storage that all nodes share: the environment, the input, the output with its state.
source /shared/webtext/bin/activate
# Ray would give up after 30 seconds; a first import from a shared disk may take longer.
export RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT=300

first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
# Results are small: Ray would keep 30% of the memory for them.
srun --kill-on-bad-exit=1 ray symmetric-run --address "$first:6379" --min-nodes "$SLURM_NNODES" \
    --num-cpus="$SLURM_CPUS_PER_TASK" --object-store-memory=100000000 -- \
    webtext clean --input /shared/merged --output /shared/clean --engine ray --ray-address auto
