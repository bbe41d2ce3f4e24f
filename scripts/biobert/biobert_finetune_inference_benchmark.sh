#!/usr/bin/env bash
# Measures predicting for a task of BioBERT's at lengths 128 and 512 with 8, 32 and 64 rows, on made-up rows. --help
# lists the three positional arguments; DRY_RUN=1 shows what would be measured.
exec bash "$(dirname "$(readlink -f "$0")")/../python.sh" -m bert_tf.launch biobert/biobert_finetune_inference_benchmark "$@"
