#!/usr/bin/env bash
# Pre-trains on PubMed's abstracts at length 512, from a checkpoint of phase 1. --help lists the positional arguments,
# NVIDIA's twelve and bert_model; DRY_RUN=1 shows what would be done.
exec bash "$(dirname "$(readlink -f "$0")")/../python.sh" -m bert_tf.launch biobert/run_pretraining-pubmed_base_phase_2 "$@"
