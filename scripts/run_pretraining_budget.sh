#!/usr/bin/env bash
# Pre-training for a number of hours: HOURS [model] [corpus]. It measures this machine first, and chooses the rest;
# DRY_RUN=1 shows what would be done. The same command resumes an interrupted run.
exec bash "$(dirname "$(readlink -f "$0")")/python.sh" -m bert_tf.launch pretraining_budget "$@"
