#!/usr/bin/env bash
# Two-phase BERT pre-training with LAMB. --help lists the fifteen positional arguments; DRY_RUN=1
# shows what would be done. Typed again with the same arguments, a run goes on where it stopped.
exec bash "$(dirname "${BASH_SOURCE[0]}")/python.sh" -m bert_tf.launch pretraining_lamb "$@"
