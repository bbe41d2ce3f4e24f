#!/usr/bin/env bash
# The fifteen arguments of run_pretraining_lamb.sh for BERT-Large on NVIDIA's machines:
#   bash scripts/run_pretraining_lamb.sh $(source scripts/configs/pretrain_config.sh && dgx1_8gpu_fp16)
#
# Micro-batches fill GPUs of 32 or 40 GB. Each configuration trains on about 512 million sequences in all, whatever its
# global batch (in the comment: phase 1 / phase 2). Batches, rates, warm-ups and steps are those that NVIDIA published.

if [ -z "${BASH_VERSION:-}" ]; then
  echo "error: these functions are for bash: bash -c 'source scripts/configs/... && ...'" >&2
  return 2
fi
# shellcheck source=scripts/configs/unknown.sh
source "$(dirname "${BASH_SOURCE[0]}")/unknown.sh"

# <train_batch_size 1, 2> <eval_batch_size> <learning_rate 1, 2> <precision> <use_xla> <num_gpus>
# <warmup_steps 1, 2> <train_steps> <save_checkpoint_steps> <num_accumulation 1, 2> <bert_model>
dgxa100_8gpu_fp16() { # 79,872 / 30,720
  echo 312 40 8  8.12e-4 5e-4  fp16 true 8  2000 200 6416  100 32 96  large
}

dgxa100_8gpu_tf32() { # 90,112 / 33,792
  echo 176 22 8  7.5e-4 5e-4  tf32 true 8  2000 200 5687  100 64 192  large
}

dgx2_16gpu_fp16() { # 61,440 / 30,720
  echo 60 10 8  3.75e-4 2.5e-4  fp16 true 16  2133 213 8341  100 64 192  large
}

dgx2_16gpu_fp32() { # 65,536 / 30,720
  echo 32 6 8  3.75e-4 2.5e-4  fp32 true 16  2000 200 7820  100 128 320  large
}

dgx1_8gpu_fp16() { # 61,440 / 30,720
  echo 60 10 8  7.5e-4 5e-4  fp16 true 8  2133 213 8341  100 128 384  large
}

dgx1_8gpu_fp32() { # 65,536 / 30,720
  echo 32 6 8  7.5e-4 5e-4  fp32 true 8  2000 200 7820  100 256 640  large
}
