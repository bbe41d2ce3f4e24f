#!/usr/bin/env bash
# Pre-trains on PubMed's abstracts at length 128, from Google's weights (or INIT_CHECKPOINT). --help lists the positional
# arguments, NVIDIA's eleven and bert_model; DRY_RUN=1 shows what would be done.
exec bash "$(dirname "$(readlink -f "$0")")/../python.sh" -m bert_tf.launch biobert/run_pretraining-pubmed_base_phase_1 "$@"
