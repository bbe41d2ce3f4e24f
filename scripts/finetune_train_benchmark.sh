#!/usr/bin/env bash
# Throughput of fine-tuning on SQuAD's shapes, with random weights and made-up questions. --help lists the five
# positional arguments; without any it measures all sizes that fit. DRY_RUN=1 shows what would be done.
exec bash "$(dirname "$(readlink -f "$0")")/python.sh" -m bert_tf.launch finetune_train_benchmark "$@"
