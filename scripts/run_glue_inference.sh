#!/usr/bin/env bash
# Scores a GLUE task's development file with a fine-tuned checkpoint, and predicts its test file. --help lists the
# eight positional arguments; DRY_RUN=1 shows what would be done.
exec bash "$(dirname "$(readlink -f "$0")")/python.sh" -m bert_tf.launch glue_inference "$@"
