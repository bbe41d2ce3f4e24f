#!/usr/bin/env bash
# Answers SQuAD's development questions with a fine-tuned checkpoint, and scores the answers. --help lists the
# eight positional arguments; DRY_RUN=1 shows what would be done.
exec bash "$(dirname "$(readlink -f "$0")")/python.sh" -m bert_tf.launch squad_inference "$@"
