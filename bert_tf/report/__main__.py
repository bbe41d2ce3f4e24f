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
from bert_tf.run.events import METRICS, read_events
from bert_tf.run.run_folder import CONFIG, is_report, read_config


@exit_on_user_error
def main(argv: Sequence[str]) -> None:
    parser = CommandParser("report", description=__doc__)
    parser.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="a folder with metrics.jsonl")
    parser.add_argument("--output", type=Path, default=Path("report.html"), help="the page; %(default)s")
    options = parser.parse_args(argv[1:])
    for run in options.runs:
        if not read_events(run) or read_config(run) is None:
            subfolders = sorted(str(file.parent) for file in run.glob(f"*/{METRICS}"))
            hint = f", here {' or '.join(subfolders)}" if subfolders else ""
            fault = f"it has no {METRICS} with events, or no {CONFIG}"
            raise UserError(f"{run}: not a run folder: {fault}; name the --model_dir of a run{hint}")
    check_output(options.output, f"--output={options.output}", is_report)
    write_page(options.runs, options.output, comparing=len(options.runs) > 1)
    print(options.output)


if __name__ == "__main__":
    main(sys.argv)
