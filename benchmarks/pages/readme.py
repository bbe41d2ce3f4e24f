"""The table of README.md "Beside other tools", made from the results."""

from __future__ import annotations

from typing import Any, NamedTuple

from benchmarks.results import FOLDER, ratios, table
from bert_tf.base.errors import UserError
from bert_tf.base.files import read_json_object


class Claim(NamedTuple):
    """A line of the table: a variant's ratio in one or more parts, each given as FILE and beginning of its title."""

    subject: str
    peer: str
    variant: str
    parts: tuple[tuple[str, str], ...]
    first_variant: str = ""  # the variant compared with, if it is not the part's first one


RECORDS = (("preparation.epyc_records", "Records, 128"), ("preparation.epyc_records", "Records, 512"))
UPDATES = (("training_step.epyc_base", "base, length 128"), ("training_step.epyc_base_512", "base, length 512"))
READING = (("input_pipeline", "128/20"), ("input_pipeline", "512/80"))
FEATURES = (("squad_features", "For training"), ("squad_features", "For prediction"))
FP32, BF16 = (f"this project, {precision}, scope blocks" for precision in ("fp32", "bf16"))
BATCH_THEN_PARSE = "tf.data, batch then parse"
PEER, PEER_IN_BF16 = "tf-models-official", "Hugging Face on PyTorch, fused AdamW, bf16"
CLAIMS = (
    Claim("sentences to TFRecords, 128 / 512", f"{PEER}'s `create_pretraining_data.py`", "this project", RECORDS),
    Claim("a Wikipedia dump to text", "wikiextractor", "this project, .xml", (("formatting", "Formatting"),)),
    Claim("an update of BERT-base, 128 / 512, fp32", f"{PEER} (fp32)", FP32, UPDATES),
    Claim("the same in bf16", f"{PEER} (fp32)", BF16, UPDATES),
    Claim("the same in bf16", "Hugging Face on PyTorch, bf16", BF16, UPDATES, PEER_IN_BF16),
    Claim("reading records, 128 / 512", BATCH_THEN_PARSE, "this project", READING, BATCH_THEN_PARSE),
    Claim("the LAMB update of BERT-base", "tensorflow-addons", "NVLAMB, compiled by shape", (("lamb_update", "base"),)),
    Claim("SQuAD questions to features, training / prediction", PEER, "this project", FEATURES),
)


def ratio(claim: Claim, part_of_file: tuple[str, str]) -> str:
    name, title = part_of_file
    file = FOLDER / f"{name}.json"
    for part in read_json_object(file, f"python -m benchmarks {name.partition('.')[0]}")["parts"]:
        if not part["title"].startswith(title):
            continue
        variants: dict[str, Any] = part["variants"]
        first_variant = claim.first_variant or next(iter(variants))
        variants = {first_variant: variants[first_variant], **variants}
        median = ratios({**part, "variants": variants}, claim.variant).median
        return f"{median:.2f}" if median < 10 else f"{median:.1f}"
    raise UserError(f"{file} has no part {title!r}; mend benchmarks/pages/readme.py")


def tables() -> str:
    rows = [[claim.subject, claim.peer, " / ".join(ratio(claim, part) for part in claim.parts)] for claim in CLAIMS]
    return "\n".join(table(["what", "beside", "times as fast"], rows)) + "\n"
