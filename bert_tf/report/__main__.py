"""``python -m bert_tf.report RUN [RUN ...]``: writes a page about one run, or one that compares several.

RUN is a run folder, the --model_dir of a run.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from bert_tf.base.command_line import CommandParser
from bert_tf.base.errors import UserError, exit_on_user_error
from bert_tf.base.files import check_output
from bert_tf.report.page import write_page
from bert_tf.run.events import read_events
from bert_tf.run.run_folder import CONFIG, is_report, read_config


@exit_on_user_error
def main(argv: Sequence[str]) -> None:
    parser = CommandParser("report", description=__doc__)
    parser.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="a folder with metrics.jsonl")
    parser.add_argument("--output", type=Path, default=Path("report.html"), help="the page; %(default)s")
    options = parser.parse_args(argv[1:])
    for run in options.runs:
        if not (run / "metrics.jsonl").is_file():
            below = sorted(str(file.parent) for file in run.glob("*/metrics.jsonl"))
            here = f", here {' or '.join(below)}" if below else ""
            raise UserError(f"{run}: not a run folder, it has no metrics.jsonl; name the --model_dir of a run{here}")
        if read_config(run) is None:
            raise UserError(f"{run}: not a run folder, it has no {CONFIG}; name the --model_dir of a run")
        if (run / "metrics.jsonl").stat().st_size and not read_events(run):
            raise UserError(f"{run / 'metrics.jsonl'} holds no event of a run; name the --model_dir of a run")
    check_output(options.output, f"--output={options.output}", is_report)
    write_page(options.runs, options.output, comparing=len(options.runs) > 1)
    print(options.output)


if __name__ == "__main__":
    main(sys.argv)
