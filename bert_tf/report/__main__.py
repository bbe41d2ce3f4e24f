"""``python -m bert_tf.report RUN [RUN ...]``: writes a page about one run, or one that compares several.

RUN is a run folder, the --model_dir of a run.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from bert_tf.base.command_line import CommandParser
from bert_tf.base.errors import exit_on_user_error
from bert_tf.base.files import check_output
from bert_tf.report.page import write_page
from bert_tf.report.runs import check_run_folder
from bert_tf.run.run_folder import is_report


@exit_on_user_error
def main(argv: Sequence[str]) -> None:
    parser = CommandParser("report", description=__doc__)
    parser.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="a folder with metrics.jsonl")
    parser.add_argument("--output", type=Path, default=Path("report.html"), help="the page; %(default)s")
    options = parser.parse_args(argv[1:])
    for run in options.runs:
        check_run_folder(run)
    check_output(options.output, f"--output={options.output}", is_report)
    write_page(options.runs, options.output, comparing=len(options.runs) > 1)
    print(options.output)


if __name__ == "__main__":
    main(sys.argv)
