#!/usr/bin/env bash
# BERT pre-training with Adam, in one phase. --help lists the thirteen positional arguments; DRY_RUN=1
# shows what would be done. The same command resumes an interrupted run.
exec bash "$(dirname "$(readlink -f "$0")")/python.sh" -m bert_tf.launch pretraining_adam "$@"
