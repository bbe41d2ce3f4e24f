"""``python -m bert_tf.tasks.extract_features CHECKPOINT --input FILE --output FILE.jsonl``: texts to vectors.

CHECKPOINT is anything that --init_checkpoint accepts: a run or checkpoint of ours, Google's, or a Hugging Face folder.
Every line of the input is a text; the output keeps their order.

FILE.jsonl: a line for each text, {"linex_index": 0, "features": [{"token": "[CLS]", "layers": [{"index": -1,
"values": [...]}]}, ...]} as Google's extract_features.py writes it; with --vectors cls or mean,
{"linex_index": 0, "layers": [...]}. It is written text by text, so that its size is limited only by the disk.

FILE.npz: an array layer_<index> for each layer, [texts, hidden size]; with --vectors tokens [all tokens, hidden size],
with tokens [all tokens] and ends [texts], the number of tokens up to the end of each text. It is collected in memory.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Callable, NamedTuple

import numpy as np

from bert_tf.base.command_parser import CommandParser, add_tokenizer_arguments
from bert_tf.base.errors import UserError, exit_on_user_error
from bert_tf.base.files import atomic_file, check_file, check_output, decoded_lines
from bert_tf.base.progress import Progress
from bert_tf.base.tensorflow import choose_device
from bert_tf.base.values import parse_whole
from bert_tf.settings.training import MAX_GLOBAL_BATCH
from bert_tf.text.tokenizer import CasingFlags
from bert_tf.text.vocabulary import UNKNOWN_TOKEN, UnknownTokens

if TYPE_CHECKING:
    from bert_tf.interchange.pretrained import Pretrained

TOKENS, CLS, MEAN = VECTORS = ("tokens", "cls", "mean")
# Texts are sorted by length within this many batches, and rows are padded to a multiple of this many tokens, because
# TensorFlow traces a new graph for each length.
_BATCHES_SORTED, _LENGTH_STEP = 32, 32


class Settings(NamedTuple):
    """What to extract. Layer 0 is the embeddings, 1 the first layer, -1 the last."""

    layers: tuple[int, ...] = (-1,)
    vectors: str = TOKENS
    max_seq_length: int = 128
    batch_size: int = 32


class Extracted(NamedTuple):
    """The vectors of one text by layer: those of all its tokens [T, H], or one for the whole text [H]."""

    tokens: list[str]
    layers: dict[int, np.ndarray]


def extract(model: Pretrained, texts: Iterable[str], settings: Settings) -> Iterator[Extracted]:
    """The vectors of each text, in order.

    Raises:
      UserError: the model has no such layer, or too few positions; raised by the call, not when the first vector is
        requested.
    """
    config = model.encoder.config
    for layer in settings.layers:
        if not -config.num_hidden_layers - 1 <= layer <= config.num_hidden_layers:
            raise UserError(
                f"--layers: {layer}: the model has layers 1 to {config.num_hidden_layers}, and 0 or -1, -2..."
            )
    if not 3 <= settings.max_seq_length <= config.max_position_embeddings:
        raise UserError(
            f"--max_seq_length={settings.max_seq_length}: must be at least 3, [CLS], a token and [SEP], and at "
            f"most {config.max_position_embeddings}, the model's positions"
        )
    return _extract(model, texts, settings)


def _extract(model: Pretrained, texts: Iterable[str], settings: Settings) -> Iterator[Extracted]:
    compute, lines = _compiled(model, settings), iter(texts)
    while chunk := list(itertools.islice(lines, settings.batch_size * _BATCHES_SORTED)):
        rows = [model.encode(text, settings.max_seq_length) for text in chunk]
        by_length = sorted(range(len(rows)), key=lambda number: len(rows[number]))
        extracted: dict[int, Extracted] = {}
        for start in range(0, len(rows), settings.batch_size):
            numbers = by_length[start : start + settings.batch_size]
            for number, outputs in zip(numbers, zip(*compute([rows[number] for number in numbers]))):
                kept = [output[: len(rows[number])] if settings.vectors == TOKENS else output for output in outputs]
                tokens = model.tokenizer.convert_ids_to_tokens(rows[number])
                extracted[number] = Extracted(tokens, dict(zip(settings.layers, kept)))
        yield from (extracted[number] for number in range(len(rows)))


def _compiled(model: Pretrained, settings: Settings) -> Callable[[list[list[int]]], list[np.ndarray]]:
    """A function from a batch of ids to an array for each layer: [B, S, H], or [B, H] if tokens are pooled."""
    import tensorflow as tf

    @tf.function(autograph=False)
    def run(features: dict[str, tf.Tensor]) -> list[tf.Tensor]:
        states = model.encoder.hidden_states(features)
        chosen = [states[layer] for layer in settings.layers]
        if settings.vectors == CLS:
            return [state[:, 0] for state in chosen]
        if settings.vectors == MEAN:
            is_token_BxSx1 = tf.cast(features["input_mask"], tf.float32)[:, :, tf.newaxis]
            counts_Bx1 = tf.reduce_sum(is_token_BxSx1, axis=1)
            return [tf.reduce_sum(state * is_token_BxSx1, axis=1) / counts_Bx1 for state in chosen]
        return chosen

    def compute(rows: list[list[int]]) -> list[np.ndarray]:
        length = -(-max(map(len, rows)) // _LENGTH_STEP) * _LENGTH_STEP
        shape = (settings.batch_size, min(length, model.encoder.config.max_position_embeddings))
        inputs = model.pad(rows, shape)
        inputs["input_mask"][:, 0] = 1  # the rows that fill the batch have no tokens and so no mean
        outputs = run({name: tf.constant(value) for name, value in inputs.items()})
        return [output.numpy()[: len(rows)] for output in outputs]

    return compute


def _write_json_lines(file: IO[bytes], all_extracted: Iterable[Extracted]) -> None:
    def layers_of(layers: dict[int, np.ndarray]) -> list[dict]:
        return [{"index": i, "values": [round(x, 6) for x in vector.tolist()]} for i, vector in layers.items()]

    for number, (tokens, layers) in enumerate(all_extracted):
        line: dict = {"linex_index": number}
        if next(iter(layers.values())).ndim == 1:
            line["layers"] = layers_of(layers)
        else:
            line["features"] = [
                {"token": token, "layers": layers_of({index: vectors[position] for index, vectors in layers.items()})}
                for position, token in enumerate(tokens)
            ]
        file.write((json.dumps(line, ensure_ascii=False) + "\n").encode("utf-8"))


def _write_npz(file: IO[bytes], all_extracted: Iterable[Extracted]) -> None:
    everything = list(all_extracted)
    layers = everything[0].layers
    is_pooled = next(iter(layers.values())).ndim == 1
    join = np.stack if is_pooled else np.concatenate
    arrays = {f"layer_{index}": join([extracted.layers[index] for extracted in everything]) for index in layers}
    if not is_pooled:
        arrays["tokens"] = np.array([token for extracted in everything for token in extracted.tokens])
        arrays["ends"] = np.cumsum([len(extracted.tokens) for extracted in everything])
    np.savez(file, **arrays)


_WRITERS = {".jsonl": _write_json_lines, ".npz": _write_npz}


def _is_ours(beginning: bytes) -> bool:
    """Whether a file that begins like this was written by this program."""
    return beginning.startswith(b'{"linex_index": 0, ') or (beginning[:2] == b"PK" and b"layer_" in beginning[:60])


def _whole(text: str) -> int:
    try:
        return parse_whole(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} {error}") from None


def _layers(text: str) -> tuple[int, ...]:
    """Parses comma-separated layer numbers."""
    return tuple(map(_whole, text.split(",")))


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = CommandParser("python -m bert_tf.tasks.extract_features", description=__doc__)
    parser.add_argument("checkpoint", metavar="CHECKPOINT")
    parser.add_argument("--input", type=Path, required=True, help="a file of UTF-8 with a text in each line")
    parser.add_argument("--output", type=Path, required=True, help="a file that ends in .jsonl or .npz")
    parser.add_argument("--replace", action="store_true", help="replace the output where it exists")
    parser.add_argument("--layers", type=_layers, default=(-1,), help="--layers=-1,-2; 0: the embeddings; default: -1")
    parser.add_argument("--vectors", choices=VECTORS, default=TOKENS, help="of all tokens, of [CLS], or their mean")
    parser.add_argument("--max_seq_length", type=_whole, default=128, help="tokens of a text; more are cut off")
    parser.add_argument("--batch_size", type=_whole, default=32)
    add_tokenizer_arguments(parser)
    parser.add_argument("--device", choices=("auto", "cpu"), default="auto")
    return parser.parse_args(argv[1:])


@exit_on_user_error
def main(argv: Sequence[str]) -> None:
    options = _parse(argv)
    check_file(options.input, "name a file of texts with --input")
    num_texts = sum(1 for _ in decoded_lines(options.input))
    if not num_texts:
        raise UserError(f"{options.input} is empty; it must hold a text in each line")
    if options.output.suffix not in _WRITERS:
        raise UserError(f"--output={options.output}: must end in {' or '.join(_WRITERS)}")
    check_output(options.output, f"--output={options.output}", _is_ours)
    if options.output.exists() and not options.replace:
        raise UserError(f"{options.output} exists; replace it with --replace, or name another --output")
    if not 1 <= options.batch_size <= MAX_GLOBAL_BATCH:
        raise UserError(f"--batch_size={options.batch_size}: must be at least 1 and at most {MAX_GLOBAL_BATCH}")
    choose_device(options.device)
    from bert_tf.interchange.initialise import find_weights  # imports TensorFlow
    from bert_tf.interchange.pretrained import load_pretrained

    settings = Settings(options.layers, options.vectors, options.max_seq_length, options.batch_size)
    texts = (line.rstrip("\r\n") for _, line in decoded_lines(options.input))
    weights = find_weights(options.checkpoint, "CHECKPOINT")
    for warning in weights.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    model, assumed = load_pretrained(
        weights, options.vocab_file, CasingFlags(options.do_lower_case, options.strip_accents)
    )
    if assumed:
        print(assumed, file=sys.stderr)
    extracted = extract(model, texts, settings)
    unknown = UnknownTokens(0, 0, model.tokenizer.casing)

    def counted() -> Iterator[Extracted]:
        nonlocal unknown
        for text in Progress(extracted, total=num_texts, unit="texts", description="extracting"):
            num_unknown, num_tokens, casing = unknown
            unknown = UnknownTokens(
                num_unknown + text.tokens.count(UNKNOWN_TOKEN), num_tokens + len(text.tokens), casing
            )
            yield text

    with atomic_file(options.output) as file:
        _WRITERS[options.output.suffix](file, counted())
    print(unknown.describe(options.input))
    print(f"the vectors of {num_texts:,} texts are in {options.output}")


if __name__ == "__main__":
    main(sys.argv)
