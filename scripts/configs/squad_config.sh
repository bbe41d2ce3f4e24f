#!/usr/bin/env bash
# The eleven arguments of run_squad.sh for BERT-Large on NVIDIA's machines:
#   bash scripts/run_squad.sh $(source scripts/configs/squad_config.sh && dgx1_8gpu_fp16)
#
# Batches and rates are those that NVIDIA published (GPUs of 16 GB in a DGX-1, 32 in a DGX-2, 40 in a DGX A100), and
# so are two epochs of SQuAD 1.1. SQUAD_VERSION=2.0 and CHECKPOINT=<folder> change the questions and the weights.

if [ -z "${BASH_VERSION:-}" ]; then
  echo "error: these functions are for bash: bash -c 'source scripts/configs/... && ...'" >&2
  return 2
fi
# shellcheck source=scripts/configs/unknown.sh
source "$(dirname "${BASH_SOURCE[0]}")/unknown.sh"

# <batch_size_per_gpu> <learning_rate_per_gpu> <precision> <use_xla> <num_gpus>, then arguments that all share
_squad_arguments() {
  local weights="data/download/google_pretrained_weights/uncased_L-24_H-1024_A-16/bert_model.ckpt"
  echo "$@" 384 128 large "${SQUAD_VERSION:-1.1}" "${CHECKPOINT:-$weights}" 2.0
}

dgxa100_8gpu_fp16() { _squad_arguments 76 3e-5 fp16 true 8; }
dgxa100_8gpu_tf32() { _squad_arguments 38 7.5e-6 tf32 true 8; }
dgx2_16gpu_fp16() { _squad_arguments 12 3.75e-6 fp16 true 16; }
dgx2_16gpu_fp32() { _squad_arguments 8 2.5e-6 fp32 true 16; }
dgx1_8gpu_fp16() { _squad_arguments 6 5e-6 fp16 true 8; }
dgx1_8gpu_fp32() { _squad_arguments 3 5e-6 fp32 true 8; }
