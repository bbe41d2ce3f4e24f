"""Makes hugging_face_bert.npz, hugging_face/ and hugging_face_one_type/: what an independent BERT computes and writes.

Origin of the numbers: transformers 4.57.6 with torch 2.13.0 (CPU, float32), BertForPreTraining and
BertForQuestionAnswering over seeded random weights. Neither is needed for the tests, only for
making the file again, in an environment of its own beside this project:

    python3 -m venv golden-venv
    golden-venv/bin/pip install . torch==2.13.0 "transformers<5" "numpy<2"
    golden-venv/bin/python tests/golden/make_hugging_face_golden.py

Arrays in the file, "/" separating the parts of a key:
  weights/<Google's name>          float16 (the float32 weights are exactly these; kernels [in, out])
  inputs/<name>                    Google's feature names, and start_positions, end_positions
  <act>/hidden_states              float32 [L + 1, B, S, H]; <act> is gelu_new (tanh) or gelu (erf)
  <act>/pooled, mlm_logits, nsp_logits, start_logits, end_logits
  <act>/mlm_loss, nsp_loss         means over the masked tokens and over the instances
  <act>/span_loss                  mean of the start's and the end's
  <act>/pretraining_gradients/<Google's name>, <act>/span_gradients/<Google's name>
The padding of masked_lm_positions has weight 0 and does not enter mlm_loss.

In the folders: config.json, model.safetensors of a tiny BertForPreTraining; outputs.npz: input_ids, input_mask,
segment_ids, hidden_states [L + 1, B, S, H], pooled, mlm_logits [B, S, V], nsp_logits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import BertConfig, BertForPreTraining, BertForQuestionAnswering

from bert_tf.interchange.hugging_face import is_transposed, to_our_name

FOLDER = Path(__file__).resolve().parent
# A vocabulary that is no multiple of 8, and lengths that differ from every width.
CONFIG = dict(
    vocab_size=101,
    hidden_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=96,
    max_position_embeddings=32,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
BATCH, LENGTH, PREDICTIONS = 3, 20, 5
# Of the folders.
SIZES = dict(
    vocab_size=23,
    hidden_size=8,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=12,
    max_position_embeddings=16,
    initializer_range=0.3,
)
# The second is far enough from BERT's 1e-12 to show.
MODELS = {"hugging_face": {}, "hugging_face_one_type": {"type_vocab_size": 1, "layer_norm_eps": 1e-2}}
PRETRAINING_GRADIENTS = (
    "bert/embeddings/word_embeddings",
    "bert/embeddings/position_embeddings",
    "bert/embeddings/token_type_embeddings",
    "bert/embeddings/LayerNorm/gamma",
    "bert/encoder/layer_0/attention/self/query/kernel",
    "bert/encoder/layer_0/attention/self/value/bias",
    "bert/encoder/layer_1/attention/self/key/kernel",
    "bert/encoder/layer_1/intermediate/dense/bias",
    "bert/encoder/layer_1/output/dense/kernel",
    "bert/encoder/layer_2/attention/output/LayerNorm/beta",
    "bert/pooler/dense/kernel",
    "cls/predictions/transform/dense/kernel",
    "cls/predictions/output_bias",
    "cls/seq_relationship/output_weights",
)
# Not the span head's bias: a softmax over positions does not see it, its gradient is rounding.
SPAN_GRADIENTS = (
    "bert/encoder/layer_0/attention/self/query/kernel",
    "bert/encoder/layer_2/output/dense/bias",
    "cls/squad/output_weights",
)


def google_names(model: torch.nn.Module) -> dict[str, str]:
    """Google's names of a torch model's parameters; the masked-word head's copy of the word table is none."""
    heads = {"qa_outputs.weight": "cls/squad/output_weights", "qa_outputs.bias": "cls/squad/output_bias"}
    names = (name for name in model.state_dict() if "decoder" not in name and "position_ids" not in name)
    return {name: heads.get(name) or to_our_name(name) for name in names}


def transposed(array: Any, name: str) -> Any:
    """From torch's layout of the variable that Google calls `name` to Google's, and back."""
    return array.T if is_transposed(name) else array


def make_weights(models: list[torch.nn.Module]) -> dict[str, np.ndarray]:
    """Seeded weights, large enough that attention is far from uniform."""
    rng = np.random.default_rng(7)
    weights: dict[str, np.ndarray] = {}
    for model in models:
        state = model.state_dict()
        for name, google in google_names(model).items():
            if google not in weights:
                value = rng.normal(0, 0.2, transposed(state[name], google).shape)
                weights[google] = (value + google.endswith("gamma")).astype(np.float16)
    return weights


def load(model: torch.nn.Module, weights: dict[str, np.ndarray]) -> None:
    state = model.state_dict()
    for name, google in google_names(model).items():
        state[name].copy_(torch.tensor(transposed(weights[google].astype(np.float32), google).copy()))
    model.eval()


def make_inputs() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(8)
    lengths = np.array([[LENGTH], [13], [9]])
    mask = (np.arange(LENGTH) < lengths).astype(np.int32)
    num_masked = np.array([[PREDICTIONS], [2], [1]])
    weights = (np.arange(PREDICTIONS) < num_masked).astype(np.float32)
    positions = np.stack([np.sort(rng.permutation(np.arange(1, 8))[:PREDICTIONS]) for _ in range(BATCH)])
    return {
        "input_ids": (rng.integers(5, CONFIG["vocab_size"], [BATCH, LENGTH]) * mask).astype(np.int32),
        "input_mask": mask,
        "segment_ids": ((np.arange(LENGTH) >= 6) * mask).astype(np.int32),
        "masked_lm_positions": (positions * weights).astype(np.int32),
        "masked_lm_ids": (rng.integers(5, CONFIG["vocab_size"], [BATCH, PREDICTIONS]) * weights).astype(np.int32),
        "masked_lm_weights": weights,
        "next_sentence_labels": np.array([[0], [1], [1]], np.int32),
        "start_positions": np.array([3, 0, 5], np.int32),
        "end_positions": np.array([19, 12, 5], np.int32),
    }


def gradients(model: torch.nn.Module, wanted: tuple[str, ...]) -> dict[str, np.ndarray]:
    names, parameters = google_names(model), dict(model.named_parameters())
    found = {google: parameters[name].grad for name, google in names.items()}
    return {google: transposed(found[google], google).detach().numpy() for google in wanted}


def run(activation: str, inputs: dict[str, np.ndarray], weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    config = BertConfig(**CONFIG, hidden_act=activation, attn_implementation="eager")
    pretraining, span = BertForPreTraining(config), BertForQuestionAnswering(config)
    load(pretraining, weights)
    load(span, weights)
    tensors = {name: torch.tensor(value).long() for name, value in inputs.items()}
    common = {
        "input_ids": tensors["input_ids"],
        "attention_mask": tensors["input_mask"],
        "token_type_ids": tensors["segment_ids"],
    }

    labels = torch.full([BATCH, LENGTH], -100)
    for row in range(BATCH):
        masked = inputs["masked_lm_weights"][row] > 0
        labels[row, inputs["masked_lm_positions"][row][masked]] = tensors["masked_lm_ids"][row][masked]
    outputs = pretraining(**common, output_hidden_states=True)
    mlm_logits = outputs.prediction_logits
    mlm_loss = torch.nn.functional.cross_entropy(mlm_logits.flatten(0, 1), labels.flatten())
    nsp_loss = torch.nn.functional.cross_entropy(outputs.seq_relationship_logits, tensors["next_sentence_labels"][:, 0])
    (mlm_loss + nsp_loss).backward()
    own_loss = pretraining(**common, labels=labels, next_sentence_label=tensors["next_sentence_labels"]).loss
    torch.testing.assert_close(own_loss, mlm_loss + nsp_loss)

    answers = span(**common, start_positions=tensors["start_positions"], end_positions=tensors["end_positions"])
    answers.loss.backward()
    rows = torch.arange(BATCH)[:, None]
    results = {
        "hidden_states": torch.stack(outputs.hidden_states),
        "pooled": pretraining.bert(**common).pooler_output,
        "mlm_logits": mlm_logits[rows, tensors["masked_lm_positions"]],
        "nsp_logits": outputs.seq_relationship_logits,
        "mlm_loss": mlm_loss,
        "nsp_loss": nsp_loss,
        "start_logits": answers.start_logits,
        "end_logits": answers.end_logits,
        "span_loss": answers.loss,
    }
    found = {name: value.detach().numpy() for name, value in results.items()}
    for kind, model, wanted in (("pretraining", pretraining, PRETRAINING_GRADIENTS), ("span", span, SPAN_GRADIENTS)):
        found.update({f"{kind}_gradients/{name}": value for name, value in gradients(model, wanted).items()})
    return found


def make_folder(folder: Path, config: BertConfig) -> None:
    torch.manual_seed(5)
    model = BertForPreTraining(config).eval()
    for parameter in model.parameters():  # also biases and LayerNorm's, which start as 0 and 1; half keeps its value
        parameter.data = (parameter.data + 0.1 * torch.randn_like(parameter)).half().float()
    model.tie_weights()
    rng = np.random.default_rng(6)
    mask = (np.arange(10) < np.array([[10], [6], [3]])).astype(np.int64)
    inputs = {
        "input_ids": rng.integers(1, config.vocab_size, mask.shape) * mask,
        "input_mask": mask,
        "segment_ids": (np.arange(10) > 3) * mask,
    }
    with torch.no_grad():
        outputs = model(
            input_ids=torch.tensor(inputs["input_ids"]),
            attention_mask=torch.tensor(mask),
            token_type_ids=torch.tensor(inputs["segment_ids"] % config.type_vocab_size),
            output_hidden_states=True,
        )
        pooled = model.bert.pooler(outputs.hidden_states[-1])
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    np.savez_compressed(
        folder / "outputs.npz",
        **{name: array.astype(np.int32) for name, array in inputs.items()},
        hidden_states=torch.stack(outputs.hidden_states).numpy(),
        pooled=pooled.numpy(),
        mlm_logits=outputs.prediction_logits.numpy(),
        nsp_logits=outputs.seq_relationship_logits.numpy(),
    )


def main() -> None:
    torch.manual_seed(0)
    config = BertConfig(**CONFIG)
    weights = make_weights([BertForPreTraining(config), BertForQuestionAnswering(config)])
    inputs = make_inputs()
    arrays = {f"weights/{name}": value for name, value in weights.items()}
    arrays.update({f"inputs/{name}": value for name, value in inputs.items()})
    for activation in ("gelu_new", "gelu"):
        arrays.update({f"{activation}/{name}": value for name, value in run(activation, inputs, weights).items()})
    path = FOLDER / "hugging_face_bert.npz"
    np.savez_compressed(path, **arrays)
    print(f"{path.name}: {len(arrays)} arrays, {path.stat().st_size} bytes")
    for name, changes in MODELS.items():
        make_folder(FOLDER / name, BertConfig(**SIZES, **changes))


if __name__ == "__main__":
    main()
