#!/bin/bash
# One run of gpt2 train on several machines: `sbatch docs/slurm/train.sh`; submit it again to resume.
#SBATCH --job-name=gpt2
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@180
#SBATCH --requeue
set -euo pipefail

# On storage that all machines share: the run. The token files may be copies on each machine, under the same path.
output=/shared/runs/774M
data=/shared/corpus_text_document

first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
# At the signal torchrun would give a run 30 seconds to save, and kill it then.
srun --kill-on-bad-exit=1 torchrun --nnodes "$SLURM_NNODES" --nproc-per-node "$SLURM_GPUS_ON_NODE" \
    --shutdown-timeout 170 --rdzv-backend c10d --rdzv-id "$SLURM_JOB_ID" --rdzv-endpoint "$first:29500" \
    -m gpt2_train train --data "$data" --output "$output" --model 774M --epochs 1 --global-batch-size 512 \
    --data-parallel-replicate "$SLURM_NNODES" --save-every 500 --distributed-timeout 15
