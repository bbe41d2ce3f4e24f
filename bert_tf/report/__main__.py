"""``python -m bert_tf.report``: writes report.html, or the curves alone, from run folders."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from bert_tf.base.errors import UserError, exit_on_user_error
from bert_tf.report.document import DEFAULT_TITLE, write_curve_svg, write_report


@exit_on_user_error
def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m bert_tf.report", description=__doc__)
    parser.add_argument("--run_folders", required=True, help="comma-separated, phases in order")
    parser.add_argument("--output", required=True, help="the .html to write; .svg: the curves alone")
    parser.add_argument("--title", default=DEFAULT_TITLE)
    arguments = parser.parse_args(argv[1:])
    folders = [folder for folder in arguments.run_folders.split(",") if folder]
    if not any(Path(folder).is_dir() for folder in folders):
        raise UserError(f"--run_folders={arguments.run_folders}: none of these folders exists")
    try:
        if arguments.output.endswith(".svg"):
            write_curve_svg(folders, arguments.output)
        else:
            write_report(folders, arguments.output, arguments.title)
    except OSError as error:
        raise UserError(f"--output={arguments.output}: {error}; choose another file") from None
    print(f"report: {arguments.output}")


if __name__ == "__main__":
    main(sys.argv)
