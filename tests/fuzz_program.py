"""One program, called again and again in one process: what it says to many command lines.

`answers` starts this file as a process. Each line of its stdin is a JSON list of arguments, each of stdout ``[exit
code, message]``. What is no mistake gets as far as the training, which does nothing here. The exit code of what would
end in a traceback is -1.
"""

import importlib
import json
import sys
import traceback
from types import SimpleNamespace

from bert_tf.base.errors import as_user_error
from tests import processes


def answers(program, command_lines):
    """What a program says to each of the command lines: [exit code, message]."""
    lines = "".join(json.dumps(line) + "\n" for line in command_lines)
    done = processes.run([sys.executable, __file__, program], lines, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stderr[-4000:]
    if "-1" in done.stdout:
        print(done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()]


def do_nothing(*_, **__):
    return None


def without_last(method):
    """The method with a last argument that does nothing: what comes after a training, or the prediction."""
    return lambda *arguments: method(*arguments[:-1], do_nothing)


def main():
    program = importlib.import_module(sys.argv[1].replace("run_", "bert_tf.programs."))
    if sys.argv[1] == "run_pretraining":
        from bert_tf.contrib.replay import replay

        replay._attempt = lambda *_: SimpleNamespace(describe=tuple)
    else:
        from bert_tf.tasks import job

        run_job = job.run_job
        job.run_job = lambda *arguments: run_job(*arguments[:2], do_nothing)
    from bert_tf.training.trainer import Trainer

    Trainer._run_updates, Trainer.fit = do_nothing, without_last(Trainer.fit)
    shown = sys.stdout
    sys.stdout = sys.stderr
    for line in sys.stdin:
        arguments = ["program", *json.loads(line)]
        try:
            program.main.__wrapped__(arguments)
            answer = [0, ""]
        except Exception as raised:
            error = as_user_error(raised)
            if error is None:
                traceback.print_exc()
                answer = [-1, repr(raised)]
            else:
                answer = [error.exit_code, str(error)]
            del error  # and with its traceback the lock of a run folder
        print(json.dumps(answer), file=shown, flush=True)


if __name__ == "__main__":
    main()
