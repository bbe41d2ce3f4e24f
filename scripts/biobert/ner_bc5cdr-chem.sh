#!/usr/bin/env bash
# Fine-tunes on BC5CDR's chemicals, labels and scores. --help lists the eleven positional arguments; DRY_RUN=1 shows
# what would be done. The checkpoint 'none' starts from random weights (needs VOCAB_FILE).
exec bash "$(dirname "$(readlink -f "$0")")/../python.sh" -m bert_tf.launch biobert/ner_bc5cdr-chem "$@"
