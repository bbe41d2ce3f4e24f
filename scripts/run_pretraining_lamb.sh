#!/usr/bin/env bash
# Two-phase BERT pre-training with LAMB. --help lists the fifteen positional arguments; DRY_RUN=1
# shows what would be done. The same command resumes an interrupted run.
exec bash "$(dirname "$(readlink -f "$0")")/python.sh" -m bert_tf.launch pretraining_lamb "$@"
