"""SQuAD's JSON to the model's inputs in one process, beside tf-models-official's run_squad code.

Both read the same file and make windows of 384 tokens with stride 128, for training (answer positions) and for
prediction, into lists or arrays in memory; tf-models-official's writing of TFRecords is left out. Every
measurement is a new process on one core, so that no cache is warm; imports do not count. The variants take turns.

    python3.11 -m venv peers
    peers/bin/pip install tf-models-official==2.15.0 tensorflow-cpu==2.15.1 tensorflow-text==2.15.0 "numpy<2"
    python benchmarks/squad_features.py --file dev-v2.0.json --vocab_file vocab.txt --peer_python peers/bin/python
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(CHECKOUT))

_OURS = """
import json, sys, time
from bert_tf.tasks.squad.examples import read_examples
from bert_tf.tasks.squad.features import FeatureSettings, make_features
from bert_tf.text.wordpiece import FullTokenizer
file, vocab_file, is_training = sys.argv[1], sys.argv[2], sys.argv[3] == "train"
wall, cpu = time.perf_counter(), time.process_time()
tokenizer = FullTokenizer(vocab_file)
examples = read_examples(file, version_2_with_negative=True)
windows = make_features(examples, tokenizer, FeatureSettings(), is_training=is_training).num_windows
print(json.dumps([len(examples), windows, time.perf_counter() - wall, time.process_time() - cpu]))
"""
_THEIRS = """
import json, sys, time
from official.nlp.data import squad_lib
from official.nlp.tools import tokenization
file, vocab_file, is_training = sys.argv[1], sys.argv[2], sys.argv[3] == "train"
wall, cpu = time.perf_counter(), time.process_time()
tokenizer = tokenization.FullTokenizer(vocab_file, do_lower_case=True)
examples = squad_lib.read_squad_examples(file, is_training, version_2_with_negative=True)
windows = []
squad_lib.convert_examples_to_features(
    examples, tokenizer, 384, 128, 64, is_training, lambda feature, is_padding=False: windows.append(feature),
    batch_size=1)
print(json.dumps([len(examples), len(windows), time.perf_counter() - wall, time.process_time() - cpu]))
"""


def with_one_answer(file: Path, copy: Path) -> None:
    """Leaves each question its first answer: tf-models-official takes no more for training."""
    content = json.loads(file.read_text(encoding="utf-8"))
    for article in content["data"]:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                del question["answers"][1:]
    copy.write_text(json.dumps(content), encoding="utf-8")


def measure(python: str, code: str, arguments: list[str], core: int) -> list[float]:
    """Questions, windows, seconds and seconds of processor time of one process."""
    answer = subprocess.run(
        [python, "-c", code, *arguments],
        capture_output=True,
        text=True,
        cwd=CHECKOUT,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""},
        preexec_fn=lambda: os.sched_setaffinity(0, [core]),
    )
    if answer.returncode:
        raise SystemExit(f"error: {python} ended with code {answer.returncode}\n{answer.stderr[-2000:]}")
    return json.loads(answer.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--file", required=True, help="in SQuAD's format")
    parser.add_argument("--vocab_file", required=True)
    parser.add_argument("--peer_python", required=True, help="interpreter with tf-models-official")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--core", type=int, default=0)
    args = parser.parse_args()
    variants = {"tf-models-official": (args.peer_python, _THEIRS), "this project": (sys.executable, _OURS)}
    print("| for | variant | questions | windows | s | windows/s | processor s | times theirs, by processor time |")
    print("|---|---|---|---|---|---|---|---|")
    folder = tempfile.TemporaryDirectory()
    file = Path(folder.name) / "questions.json"
    with_one_answer(Path(args.file), file)
    for use in ("train", "predict"):
        found: dict[str, list[list[float]]] = {name: [] for name in variants}
        for _ in range(args.rounds):
            for name, (python, code) in variants.items():
                found[name].append(measure(python, code, [str(file), args.vocab_file, use], args.core))
        theirs = statistics.median(sample[3] for sample in found["tf-models-official"])
        for name, samples in found.items():
            questions, windows = map(int, samples[0][:2])
            wall, cpu = (statistics.median(sample[place] for sample in samples) for place in (2, 3))
            print(
                f"| {use} | {name} | {questions:,} | {windows:,} | {wall:.3f} | {windows / wall:,.0f} | {cpu:.3f} "
                f"| {theirs / cpu:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
