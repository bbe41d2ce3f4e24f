#!/usr/bin/env bash
# BERT pre-training with Adam, in one phase. --help lists the thirteen positional arguments; DRY_RUN=1
# shows what would be done. Typed again with the same arguments, a run goes on where it stopped.
exec bash "$(dirname "${BASH_SOURCE[0]}")/python.sh" -m bert_tf.launch pretraining_adam "$@"
