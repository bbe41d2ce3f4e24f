#!/usr/bin/env bash
# Phase 1 (length 128) of scripts/run_pretraining_lamb.sh, with the same fifteen arguments.
exec bash "$(dirname "$(readlink -f "$0")")/python.sh" -m bert_tf.launch pretraining_lamb_phase1 "$@"
