#!/usr/bin/env bash
# Fine-tunes on ChemProt's relations, scores dev.tsv and test.tsv, predicts test.tsv. --help lists the eleven positional
# arguments; DRY_RUN=1 shows what would be done. The checkpoint 'none' starts from random weights (needs VOCAB_FILE).
exec bash "$(dirname "$(readlink -f "$0")")/../python.sh" -m bert_tf.launch biobert/rel_chemprot "$@"
