"""Where each dataset comes from: addresses, and the checksums that were published for them.

sha256 of SQuAD and GLUE as in the Hugging Face Hub's and TensorFlow Datasets' lists, of Google's
weights as in NVIDIA's (LanguageModeling/BERT/data/GooglePretrainedWeightDownloader.py). Wikimedia
and PubMed publish theirs beside the files.
"""

from __future__ import annotations

from typing import NamedTuple, Union


class RemoteFile(NamedTuple):
    """`name` is relative to the dataset's folder; `checksum` is ``"<algorithm>:<hex>"``."""

    url: str
    name: str
    checksum: str | None = None


class Files(NamedTuple):
    """Files fetched one by one."""

    folder: str
    files: tuple[RemoteFile, ...]


class Archive(NamedTuple):
    """An archive whose folder `top` becomes `into` (relative to the dataset's folder).

    `files` have to be in it, with their sha256 where that is known.
    """

    url: str
    top: str
    into: str
    files: dict[str, str | None]
    checksum: str | None = None


class Archives(NamedTuple):
    """Files that come packed."""

    folder: str
    archives: tuple[Archive, ...]


class Paraphrases(NamedTuple):
    """MRPC: two files of pairs, and which pairs of the first one are held out."""

    folder: str
    training: RemoteFile
    test: RemoteFile
    held_out: RemoteFile


class Dump(NamedTuple):
    """A wiki's newest complete dump; `base_url` lists the dates of its dumps."""

    folder: str
    base_url: str
    wiki: str


class PubMed(NamedTuple):
    """All files that `base_url` lists, with their checksums beside them; `grows` with each day."""

    folder: str
    base_url: str
    grows: bool


class Books(NamedTuple):
    """What is no longer distributed."""

    folder: str


class Catalogue(NamedTuple):
    """Archives that people fetch by hand from a page, which asks them to agree to its terms."""

    folder: str
    page: str


Source = Union[Files, Archives, Paraphrases, Dump, PubMed, Books, Catalogue]

_SQUAD = "https://rajpurkar.github.io/SQuAD-explorer/dataset/"
_SQUAD_SHA256 = {
    "v1.1/train-v1.1.json": "3527663986b8295af4f7fcdff1ba1ff3f72d07d61a20f487cb238a6ef92fd955",
    "v1.1/dev-v1.1.json": "95aa6a52d5d6a735563366753ca50492a658031da74f301ac5238b03966972c9",
    "v2.0/train-v2.0.json": "68dcfbb971bd3e96d5b46c7177b16c1a4e7d4bdef19fb204502738552dede002",
    "v2.0/dev-v2.0.json": "80a5225e94905956a6446d296ca1093975c4d3b3260f1d6c8f68bc2ab77182d8",
}

_GLUE = "https://dl.fbaipublicfiles.com/glue/data/"
_SENTEVAL = "https://dl.fbaipublicfiles.com/senteval/senteval_data/"
_GLUE_ZIPS = {
    "CoLA": ("CoLA.zip", "f212fcd832b8f7b435fb991f101abf89f96b933ab400603bf198960dfc32cbff"),
    "SST-2": ("SST-2.zip", "d67e16fb55739c1b32cdce9877596db1c127dc322d93c082281f64057c16deaa"),
    "STS-B": ("STS-B.zip", "e60a6393de5a8b5b9bac5020a1554b54e3691f9d600b775bd131e613ac179c85"),
    "QQP": ("QQP-clean.zip", "40e7c862c04eb26ee04b67fd900e76c45c6ba8e6d8fab4f8f1f8072a1a3fbae0"),
    "MNLI": ("MNLI.zip", "e7c1d896d26ed6caf700110645df426cc2d8ebf02a5ab743d5a5c68ac1c83633"),
    "QNLI": ("QNLIv2.zip", "e634e78627a29adaecd4f955359b22bf5e70f2cbd93b493f2d624138a0c0e5f5"),
    "RTE": ("RTE.zip", "6bf86de103ecd335f3441bd43574d23fef87ecc695977a63b82d5efb206556ee"),
    "WNLI": ("WNLI.zip", "ae0e8e4d16f4d46d4a0a566ec7ecceccfd3fbfaa4a7a4b4e02848c0f2561ac46"),
}
_SPLITS = ("train", "dev", "test")
_MNLI_SPLITS = ("train", "dev_matched", "dev_mismatched", "test_matched", "test_mismatched")
GLUE_TASKS = ("CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI", "QNLI", "RTE", "WNLI")

_GOOGLE = "https://storage.googleapis.com/bert_models/"
_GOOGLE_FILES = (
    "bert_config.json",
    "vocab.txt",
    "bert_model.ckpt.data-00000-of-00001",
    "bert_model.ckpt.index",
    "bert_model.ckpt.meta",
)
_GOOGLE_SHA256: dict[str, tuple[str, ...]] = {
    "2018_10_18/uncased_L-12_H-768_A-12": (
        "7b4e5f53efbd058c67cda0aacfafb340113ea1b5797d9ce6ee411704ba21fcbc",
        "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
        "58580dc5e0bf0ae0d2efd51d0e8272b2f808857f0a43a88aaf7549da6d7a8a84",
        "04c1323086e2f1c5b7c0759d8d3e484afbb0ab45f51793daab9f647113a0117b",
        "dd5682170a10c3ea0280c2e9b9a45fee894eb62da649bbdea37b38b0ded5f60e",
    ),
    "2018_10_18/uncased_L-24_H-1024_A-16": (
        "bfa42236d269e2aeb3a6d30412a33d15dbe8ea597e2b01dc9518c63cc6efafcb",
        "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
        "bc6b3363e3be458c99ecf64b7f472d2b7c67534fd8f564c0556a678f90f4eea1",
        "68b52f2205ffc64dc627d1120cf399c1ef1cbc35ea5021d1afc889ffe2ce2093",
        "6fcce8ff7628f229a885a593625e3d5ff9687542d5ef128d9beb1b0c05edc4a1",
    ),
    "2018_10_18/cased_L-12_H-768_A-12": (
        "f11dfb757bea16339a33e1bf327b0aade6e57fd9c29dc6b84f7ddb20682f48bc",
        "eeaa9875b23b04b4c54ef759d03db9d1ba1554838f8fb26c5d96fa551df93d02",
        "734d5a1b68bf98d4e9cb6b6692725d00842a1937af73902e51776905d8f760ea",
        "517d6ef5c41fc2ca1f595276d6fccf5521810d57f5a74e32616151557790f7b1",
        "5f8a9771ff25dadd61582abb4e3a748215a10a6b55947cbb66d0f0ba1694be98",
    ),
    "2018_10_18/cased_L-24_H-1024_A-16": (
        "7adb2125c8225da495656c982fd1c5f64ba8f20ad020838571a3f8a954c2df57",
        "eeaa9875b23b04b4c54ef759d03db9d1ba1554838f8fb26c5d96fa551df93d02",
        "6ff33640f40d472f7a16af0c17b1179ca9dcc0373155fb05335b6a4dd1657ef0",
        "ef42a53f577fbe07381f4161b13c7cab4f4fc3b167cec6a9ae382c53d18049cf",
        "d2ddff3ed33b80091eac95171e94149736ea74eb645e575d942ec4a5e01a40a1",
    ),
    "2018_11_23/multi_cased_L-12_H-768_A-12": (
        "e76c3964bc14a8bb37a5530cdc802699d2f4a6fddfab0611e153aa2528f234f0",
        "fe0fda7c425b48c516fc8f160d594c8022a0808447475c1a7c6d6479763f310c",
        "55b8a2df41f69c60c5180e50a7c31b7cdf6238909390c4ddf05fbc0d37aa1ac5",
        "7d8509c2a62b4e300feb55f8e5f1eef41638f4998dd4d887736f42d4f6a34b37",
        "95e5f1997e8831f1c31e5cf530f1a2e99f121e9cd20887f2dce6fe9e3343e3fa",
    ),
    "2018_11_03/multilingual_L-12_H-768_A-12": (
        "49063bb061390211d2fdd108cada1ed86faa5f90b80c8f6fdddf406afa4c4624",
        "87b44292b452f6c05afa49b2e488e7eedf79ea4f4c39db6f2f4b37764228ef3f",
        "3cd83912ebeb0efe2abf35c9f1d5a515d8e80295e61c49b75c8853f756658429",
        "87c372c1a3b1dc7effaaa9103c80a81b3cbab04c7933ced224eec3b8ad2cc8e7",
        "27f504f34f02acaa6b0f60d65195ec3e3f9505ac14601c6a32b421d0c8413a29",
    ),
    "2018_11_03/chinese_L-12_H-768_A-12": (
        "7aaad0335058e2640bcb2c2e9a932b1cd9da200c46ea7b8957d54431f201c015",
        "45bbac6b341c319adc98a532532882e91a9cefc0329aa57bac9ae761c27b291c",
        "756699356b78ad0ef1ca9ba6528297bcb3dd1aef5feadd31f4775d7c7fc989ba",
        "46315546e05ce62327b3e2cd1bed22836adcb2ff29735ec87721396edb21b82e",
        "c0f8d51e1ab986604bc2b25d6ec0af7fd21ff94cf67081996ec3f3bf5d823047",
    ),
}


def _glue(task: str) -> Source:
    if task == "MRPC":
        return Paraphrases(
            "glue/MRPC",
            RemoteFile(
                _SENTEVAL + "msr_paraphrase_train.txt",
                "msr_paraphrase_train.txt",
                "sha256:60a9b09084528f0673eedee2b69cb941920f0b8cd0eeccefc464a98768457f89",
            ),
            RemoteFile(
                _SENTEVAL + "msr_paraphrase_test.txt",
                "msr_paraphrase_test.txt",
                "sha256:a04e271090879aaba6423d65b94950c089298587d9c084bf9cd7439bd785f784",
            ),
            RemoteFile(
                _GLUE + "mrpc_dev_ids.tsv",
                "mrpc_dev_ids.tsv",
                "sha256:971d7767d81b997fd9060ade0ec23c4fc31cbb226a55d1bd4a1bac474eb81dc7",
            ),
        )
    name, sha256 = _GLUE_ZIPS[task]
    splits = _MNLI_SPLITS if task == "MNLI" else _SPLITS
    return Archives(
        f"glue/{task}",
        (Archive(_GLUE + name, task, ".", {f"{split}.tsv": None for split in splits}, f"sha256:{sha256}"),),
    )


def _google() -> Source:
    archives = []
    for path, sha256 in _GOOGLE_SHA256.items():
        model = path.rpartition("/")[2]
        archives.append(Archive(f"{_GOOGLE}{path}.zip", model, model, dict(zip(_GOOGLE_FILES, sha256))))
    return Archives("google_pretrained_weights", tuple(archives))


def _squad() -> Source:
    return Files(
        "squad",
        tuple(
            RemoteFile(_SQUAD + name.rpartition("/")[2], name, f"sha256:{sha256}")
            for name, sha256 in _SQUAD_SHA256.items()
        ),
    )


# By the dataset's name in lower case, in the order in which "all" takes them.
SOURCES: dict[str, Source] = {
    "squad": _squad(),
    **{task.lower(): _glue(task) for task in GLUE_TASKS},
    "google_pretrained_weights": _google(),
    "nvidia_pretrained_weights": Catalogue(
        "nvidia_pretrained_weights",
        "https://catalog.ngc.nvidia.com/orgs/nvidia/dle/models/bert_large_tf1_ckpt_mode-pretrain/-",
    ),
    "bookscorpus": Books("bookscorpus"),
    "wikicorpus_en": Dump("wikicorpus_en", "https://dumps.wikimedia.org/enwiki/", "enwiki"),
    "wikicorpus_zh": Dump("wikicorpus_zh", "https://dumps.wikimedia.org/zhwiki/", "zhwiki"),
    "pubmed_baseline": PubMed("pubmed/baseline", "https://ftp.ncbi.nlm.nih.gov/pubmed/baseline/", grows=False),
    "pubmed_daily_update": PubMed(
        "pubmed/daily_update", "https://ftp.ncbi.nlm.nih.gov/pubmed/updatefiles/", grows=True
    ),
}
DATASETS: list[str] = [*SOURCES, "all"]
