#!/usr/bin/env bash
# Latency and throughput of answering SQuAD's questions, with random weights and made-up questions. --help lists
# the four positional arguments; without any it measures all sizes that fit. DRY_RUN=1 shows what would be done.
exec bash "$(dirname "$(readlink -f "$0")")/python.sh" -m bert_tf.launch finetune_inference_benchmark "$@"
