#!/usr/bin/env python3
"""Prepares pre-training data in stages; see `bert_tf.programs.prepare`, or --help."""

import os
import sys

if __name__ == "__main__":
    # Python puts this file's folder first; bert_tf is in the parent folder.
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    from bert_tf.programs.commands import bertprep

    bertprep()
