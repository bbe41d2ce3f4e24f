"""Pre-trains BERT: one phase, from token files or TFRecords to checkpoints. See docs/training.md."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from bert_tf.base.errors import UserError, exit_on_user_error
from bert_tf.base.machine.hardware import choose_device, count_gpus
from bert_tf.base.machine.software import check_tensorflow
from bert_tf.base.registration import load
from bert_tf.base.signals import STOPPED_EXIT_CODE, leave_on_stop_signals
from bert_tf.programs.flags import define_flags, require_flags, run_program
from bert_tf.settings.programs import PRETRAINING
from bert_tf.settings.training import PretrainingConfig, check_unpacked

FLAGS = flags.FLAGS
# Held-out instances evaluated by default: about 200,000 masked tokens at 20 each, enough to know the accuracy to 0.1 %.
EVALUATED_INSTANCES = 10_240

define_flags(*PRETRAINING)


def _bert_config(records):
    from bert_tf.bert_config import GOOGLE_VOCAB_SIZE, BertConfig
    from bert_tf.interchange.initialise import choose_config, find_weights

    given = [name for name in ("bert_config_file", "bert_model") if FLAGS[name].value]
    if len(given) == 2 or not given and not FLAGS.init_checkpoint:
        raise UserError(
            "give either --bert_config_file or --bert_model (large, base, medium, small, mini, tiny), or neither where "
            "--init_checkpoint has a configuration beside it"
        )
    if FLAGS.bert_config_file:
        return choose_config(FLAGS.bert_config_file, None)
    if not given:
        return choose_config(None, find_weights(FLAGS.init_checkpoint))
    if not records:  # a plan
        print(f"without --input_files: Google's vocabulary of {GOOGLE_VOCAB_SIZE:,} pieces")
        return BertConfig.preset(FLAGS.bert_model, GOOGLE_VOCAB_SIZE)
    if records.vocab_size is None:
        raise UserError(
            f"--bert_model={FLAGS.bert_model} needs the size of the vocabulary, but there is no "
            f"manifest.json beside {records.files[0]}; give --bert_config_file instead"
        )
    return BertConfig.preset(FLAGS.bert_model, records.vocab_size)


def _inputs():
    from bert_tf.batches.data_sets import InstanceSet, open_instances
    from bert_tf.batches.masking import MaskingRules
    from bert_tf.training.pretraining import PretrainingInputs

    rules = MaskingRules(FLAGS.masked_lm_prob, FLAGS.max_predictions_per_seq, FLAGS.whole_word_masking)

    def open_named_by(flag: str) -> InstanceSet:
        return open_instances(getattr(FLAGS, flag), flag, FLAGS.max_seq_length, rules, FLAGS.no_next_sentence)

    training = open_named_by("input_files")
    evaluation = open_named_by("eval_files") if FLAGS.eval_files else None
    bert_config = _bert_config(training)
    for instances in filter(None, (training, evaluation)):
        # The vocabulary of a checkpoint, which may have reserved rows, is compared with the data's.
        instances.check_vocabulary(bert_config.vocab_size, has_reserved_rows=bool(FLAGS.init_checkpoint))
    bert_config.check_length(FLAGS.max_seq_length)
    files, allow_missing = training.tokenizer_files(), FLAGS.allow_missing_weights
    of_evaluation = evaluation.tokenizer_files() if evaluation else {}
    if evaluation and files and of_evaluation not in ({}, files):
        raise UserError(
            f"the data of --eval_files ({evaluation.folder}) were made with another vocabulary, or with capitals or "
            f"accents treated otherwise, than those of --input_files ({training.folder}); use the same for both"
        )
    return PretrainingInputs(bert_config, files, training, evaluation, FLAGS.init_checkpoint, allow_missing)


def _max_eval_steps(num_ranks: int) -> int:
    if FLAGS.max_eval_steps is not None:
        return FLAGS.max_eval_steps
    return -(-EVALUATED_INSTANCES // (FLAGS.eval_batch_size * num_ranks))


def _replay() -> None:
    if not FLAGS.model_dir or FLAGS.use_horovod:
        raise UserError("--replay_update needs the run folder as --model_dir, and one process, without --use_horovod")
    replay = load("bert_tf.contrib.replay.replay:replay")
    started_from, attempts = replay(Path(FLAGS.model_dir), FLAGS.replay_update, FLAGS.input_files)
    print(f"update {FLAGS.replay_update}, made again from {started_from}")
    for attempt in attempts:
        print("\n".join(attempt.describe()))


def _plan() -> None:
    from bert_tf.batches.instance_set import InstanceSet
    from bert_tf.memory.plan import Workload, find_device, plan
    from bert_tf.memory.split import with_scope

    records = InstanceSet(FLAGS.input_files, "input_files") if FLAGS.input_files else None
    work = Workload.from_flags(with_scope(FLAGS.flag_values_dict()), _bert_config(records), 1)
    print("\n".join(plan(work, find_device(FLAGS.gpu_memory_gib, 1))))


@exit_on_user_error
def main(_: Sequence[str]) -> None:
    leave_on_stop_signals()
    choose_device(FLAGS.device)
    if FLAGS.plan:
        _plan()
        return
    check_tensorflow(count_gpus(os.environ))
    if FLAGS.replay_update is not None:
        _replay()
        return
    require_flags(FLAGS.flag_values_dict(), "input_files", "model_dir", "num_train_steps")
    from bert_tf.memory.plan import Workload
    from bert_tf.memory.split import choose_split, with_scope
    from bert_tf.ranks.connect import connect
    from bert_tf.run.run_folder import RunFolder
    from bert_tf.training.pretraining import pretrain

    if FLAGS.eval_steps and not FLAGS.eval_files:
        raise UserError("--eval_steps needs held-out data: name it with --eval_files")
    check_unpacked(FLAGS.train_batch_size, FLAGS.packing)
    workers = connect(FLAGS.use_horovod)
    folder = RunFolder(
        FLAGS.model_dir, FLAGS.dllog_path, is_chief=workers.is_chief, continue_with_changes=FLAGS.continue_with_changes
    )
    inputs = workers.chief_first(_inputs)  # it makes missing indexes and pairs, and decompresses GZIP shards
    given = with_scope(FLAGS.flag_values_dict())
    split = choose_split(given, lambda: Workload.from_flags(given, inputs.bert_config, workers.size), workers)
    config = PretrainingConfig.from_flags(given, split, max_eval_steps=_max_eval_steps(workers.size))
    if not pretrain(config, inputs, folder, workers):
        sys.exit(STOPPED_EXIT_CODE)


if __name__ == "__main__":
    run_program(main, __doc__, *PRETRAINING)
