"""A program that ends at once cleans up as one that ends by itself does."""

import subprocess
import sys

import pytest

PROGRAM = """
import pathlib, sys
from bert_tf.base.errors import UserError, exit_on_user_error
from bert_tf.base.signals import before_leaving

@exit_on_user_error
def main(argv):
    folder = pathlib.Path(argv[1])
    folder.mkdir()
    before_leaving(lambda: folder.is_dir() and folder.rmdir())
    if argv[2] == "interrupted":
        raise KeyboardInterrupt
    if argv[2] == "refused":
        raise UserError("no")

main(sys.argv)
"""


@pytest.mark.parametrize(("how", "exit_code"), [("done", 0), ("refused", 2), ("interrupted", 130)])
def test_what_was_made_for_the_program_goes_with_it(tmp_path, how, exit_code):
    command = [sys.executable, "-c", PROGRAM, tmp_path / "folder", how]
    assert subprocess.run(command, capture_output=True).returncode == exit_code
    assert not (tmp_path / "folder").exists()
