"""From the positional arguments of the shell launchers to a checked plan, and to running it.

``scripts/run_pretraining_*.sh`` and ``scripts/run_squad.sh`` only forward to
``python -m bert_tf.launch <recipe> <arguments>``. Nothing here imports TensorFlow, so a mistake is
answered at once. The environment variables are those of the documents: DATA_DIR or
BERT_PREP_WORKING_DIR, DATASET, INIT_CHECKPOINT, SQUAD_DIR, VOCAB_FILE, RESULTS_DIR, LAUNCHER, DEVICE,
MAX_EVAL_STEPS, and the switches DRY_RUN, CONTINUE_WITH_CHANGES, PACKING, RECOMPUTE.
"""
