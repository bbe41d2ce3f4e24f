"""Turns the positional arguments of the shell launchers into a checked plan, and runs it.

The launchers, such as ``scripts/run_pretraining_*.sh`` and ``scripts/run_squad.sh``, only forward to
``python -m bert_tf.launch <recipe> <arguments>``. Nothing here imports TensorFlow, so mistakes are
reported immediately. The documented environment variables are DATA_DIR or
BERT_PREP_WORKING_DIR, DATASET, DATA_FORMAT, INIT_CHECKPOINT, SQUAD_DIR, GLUE_DIR, QUOTING, VOCAB_FILE, RESULTS_DIR,
LAUNCHER, HOSTS, DEVICE, MAX_EVAL_STEPS, MAX_HOURS, RESTARTS, CONTAINER_IMAGE, CONTAINER_MOUNTS, and the switches
DRY_RUN, ALLOW_MISSING_WEIGHTS, CONTINUE_WITH_CHANGES, PACKING, RECOMPUTE, WHOLE_WORD_MASKING; those of ``run.sub`` are
in `run_sub`.
"""
