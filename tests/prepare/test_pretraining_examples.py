"""Instances against a slow, literal statement of the rules, rule by rule and in distribution."""

import random
from collections import Counter

import numpy as np
import pytest

from bert_tf.batches.masking import MaskingRules
from bert_tf.prepare.instances import instances
from bert_tf.prepare.instances.instances import RecordSettings, TokenSettings, create_instances, make_shard, read_text
from bert_tf.records.pairs import BLOCK_TOKENS, Pairs, PairSettings, draw_pairs, truncate, with_two_documents
from bert_tf.records.schema import ExampleReader, Features
from bert_tf.records.shard import RecordFile, load_index
from bert_tf.records.token_file import Shard
from bert_tf.text.basic_tokenizer import Casing
from bert_tf.text.tokenizer import open_tokenizer
from bert_tf.text.vocabulary import SPECIAL_TOKENS
from tests.preparation import numbered_documents, tokenized
from tests.pretraining_data import vocabulary_ids
from tests.refusals import refused

WORDS = [f"{letter}{number}" for number in range(10) for letter in "abcdefghij"]
VOCABULARY = [*SPECIAL_TOKENS, "[unused0]", "[unused1]", *WORDS, "[", "]", "."]
PAD, UNKNOWN, CLS, SEP, MASK = range(5)
FIRST_WORD = VOCABULARY.index("a0")
IDS = vocabulary_ids(VOCABULARY)


def settings(vocab_file="vocab.txt", **changes) -> RecordSettings:
    """`changes`: of the pairs."""
    pairs = PairSettings(**{"max_seq_length": 32, "dupe_factor": 1, **changes})
    return RecordSettings(TokenSettings(str(vocab_file), Casing.from_flags(True)), pairs, MaskingRules(0.15, 4))


def all_instances(documents, options: RecordSettings, seed=(1, 2)) -> Features:
    text = tokenized(documents)
    blocks = list(create_instances(text, options, IDS, seed))
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}


def unmasked(rows: Features) -> list[tuple[list[int], list[int], int]]:
    """(A, B, label) of every instance, with the original tokens put back; all are laid out as BERT reads them."""
    found = []
    for number in range(len(rows["input_ids"])):
        ids = rows["input_ids"][number].copy()
        chosen = rows["masked_lm_weights"][number] > 0
        ids[rows["masked_lm_positions"][number][chosen]] = rows["masked_lm_ids"][number][chosen]
        size, first_sep = np.count_nonzero(ids != PAD), ids.tolist().index(SEP)
        a, b, padding = ids[1:first_sep].tolist(), ids[first_sep + 1 : size - 1].tolist(), [0] * (32 - size)
        assert ids.tolist() == [CLS, *a, SEP, *b, SEP, *padding] and not {CLS, SEP, PAD} & {*a, *b}
        assert rows["input_mask"][number].tolist() == [1] * size + padding
        assert rows["segment_ids"][number].tolist() == [0] * (len(a) + 2) + [1] * (len(b) + 1) + padding
        found.append((a, b, int(rows["next_sentence_labels"][number, 0])))
    return found


def test_every_pair_keeps_the_rules():
    documents = numbered_documents(20)
    document_of = {token: number for number, document in enumerate(documents) for token in sum(document, [])}
    starts = {sentence[0] for document in documents for sentence in document}
    ends = {sentence[-1] for document in documents for sentence in document}
    budget = 32 - 3
    for a, b, label in unmasked(all_instances(documents, settings(dupe_factor=20))):
        assert len(a) >= 1 and len(b) >= 1 and len(a) + len(b) <= budget
        for segment in (a, b):
            assert segment == list(range(segment[0], segment[-1] + 1)), "a segment is consecutive text"
            assert len({document_of[token] for token in segment}) == 1
        assert (document_of[a[0]] != document_of[b[0]]) == label
        if len(a) + len(b) < budget:
            assert {a[0], b[0]} <= starts and {a[-1], b[-1]} <= ends, "nothing was cut off"
            if not label:
                assert b[0] == a[-1] + 1


def test_without_short_targets_every_sentence_is_an_a_or_the_actual_b_once_a_pass():
    documents = numbered_documents(20, 5)
    text = tokenized(documents)
    pairs = draw_pairs(text, settings(short_seq_prob=0).pairs, seed=3)
    covered = Counter()
    for a_start, a_end, b_start, b_end, label in zip(*pairs):
        covered.update(range(a_start, a_end if label else b_end))
        assert label or b_start == a_end
    assert covered == Counter(range(len(text.token_ids))), "what a random B replaced comes back"


def test_every_other_document_is_as_likely_and_never_its_own():
    documents = [[[1000 + 10 * number]] for number in range(8)]
    pairs = unmasked(all_instances(documents, settings(dupe_factor=4000)))
    drawn = Counter((a[0], b[0]) for a, b, _ in pairs)
    assert len(drawn) == 8 * 7
    expected = len(pairs) / 56
    assert max(abs(count - expected) for count in drawn.values()) < 5 * expected**0.5
    assert all(label == 1 for _, _, label in pairs), "one sentence: always a random next"


@pytest.mark.parametrize("budget", [2, 3, 9, 10])
def test_truncation_leaves_the_sizes_that_dropping_one_by_one_leaves(budget):
    sizes = [(a, b) for a in range(1, 15) for b in range(1, 15)]
    a, b = np.array(sizes).T
    pairs = Pairs(a * 0, a, a * 0 + 100, b + 100, a * 0)
    after = truncate(pairs, budget, np.random.default_rng(0))
    for number, (left_a, left_b) in enumerate(sizes):
        while left_a + left_b > budget:
            if left_a > left_b:
                left_a -= 1
            else:
                left_b -= 1
        assert (after.a_end - after.a_start)[number] == left_a
        assert (after.b_end - after.b_start)[number] == left_b
        assert after.a_start[number] >= 0 and after.a_end[number] <= a[number]
        assert after.b_start[number] >= 100 and after.b_end[number] <= b[number] + 100


def test_instances_are_shuffled():
    documents = numbered_documents(60)
    first_tokens = [a[0] for a, _, _ in unmasked(all_instances(documents, settings()))]
    order = np.argsort(np.argsort(first_tokens))
    assert abs(np.corrcoef(order, np.arange(len(order)))[0, 1]) < 0.2


def test_long_sentences_and_long_shards_do_not_matter():
    documents = [[[1000] * 5000], [[2000]], [[3000] * 3, [3001] * 70000]]
    rows = all_instances(documents, settings(dupe_factor=2000))
    assert len(rows["input_ids"]) * 32 > BLOCK_TOKENS
    assert max(len(a) + len(b) for a, b, _ in unmasked(rows)) == 29


# Whole shards


@pytest.fixture
def shard_text(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    rng = random.Random(0)
    sentences = [" ".join(rng.choices(WORDS, k=rng.randint(1, 12))) + " ." for _ in range(300)]
    documents = ["\n".join(rng.choices(sentences, k=rng.randint(1, 20))) for _ in range(30)]
    path = tmp_path / "x_training_0.txt"
    path.write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    return path


def make(source, number=0, split=0, **changes):
    """The entry of its record file, x.tfrecord."""
    how = settings(source.with_name("vocab.txt"), **changes)
    return make_shard(source, source.with_name("x.tfrecord"), Shard(split, number), settings=how)


def test_a_shard_is_written_with_its_index_and_counted(tmp_path, shard_text):
    output = tmp_path / "x.tfrecord"
    entry = make(shard_text, dupe_factor=3)
    counts = entry.details["counts"]
    index = load_index(output)
    file = RecordFile(output, index)
    readers = [ExampleReader(message) for message in file.read(0, file.num_records)]
    text = shard_text.read_text(encoding="utf-8")
    assert counts == {
        "num_documents": 30,
        "num_documents_cut_in_two": 0,
        "num_sentences": sum(1 for line in text.split("\n") if line),
        "num_tokens": len(text.split()),
        "num_unknown_tokens": 0,
        "num_instances": len(readers),
        "num_random_next": sum(int(reader["next_sentence_labels"][0]) for reader in readers),
        "num_masked_tokens": sum(int(reader["masked_lm_weights"].sum()) for reader in readers),
        "num_instance_tokens": sum(int(reader["input_mask"].sum()) for reader in readers),
        "num_padding_tokens": sum(32 - int(reader["input_mask"].sum()) for reader in readers),
    }
    assert index.lengths().sum() == counts["num_instance_tokens"]
    total = instances.total_counts({"training": [entry], "test": [entry]})
    assert total["num_instances"] == 2 * total["num_instances_test"] == 2 * len(readers)
    assert total["random_next_share"] == counts["num_random_next"] / len(readers)
    assert total["padding_share"] == pytest.approx(1 - index.lengths().mean() / 32)


def test_a_shard_is_the_same_bytes_again_and_differs_by_split_shard_and_seed(tmp_path, shard_text):
    def made(*where, **changes) -> bytes:
        make(shard_text, *where, **changes)
        return (tmp_path / "x.tfrecord").read_bytes() + (tmp_path / "x.tfrecord.index").read_bytes()

    first = made()
    assert made() == first
    others = {made(1), made(0, 1), made(1, 1), made(random_seed=1)}
    assert len(others | {first}) == 5


def test_text_is_read_by_line_feeds_alone_and_empty_sentences_are_left_out(tmp_path, shard_text):
    shard_text.write_bytes("\n\na0\ra1\nb0\x85b1\u2028b2\n \t\n\n\u200b\n\x01\n\nc0\n\u200b\nd0\r\nXX é".encode())
    tokenizer = open_tokenizer(tmp_path / "vocab.txt")
    text = read_text(shard_text, tokenizer)
    assert [tokenizer.inv_vocab[token] for token in text.token_ids] == "a0 a1 [UNK] b2 c0 d0 [UNK] [UNK]".split()
    assert text.sentence_starts.tolist() == [0, 2, 4, 5, 6, 8]
    assert text.document_starts.tolist() == [0, 2, 5], "a document without a sentence is left out"
    counts = make(shard_text).details["counts"]
    assert (counts["num_documents"], counts["num_sentences"], counts["num_unknown_tokens"]) == (2, 5, 3)


def test_a_single_document_is_cut_in_two(tmp_path, shard_text):
    shard_text.write_text("\n".join(WORDS[:40]), encoding="utf-8")
    counts = make(shard_text, dupe_factor=50).details["counts"]
    assert (counts["num_documents"], counts["num_documents_cut_in_two"]) == (1, 1)
    text = tokenized([[[1000 + number] for number in range(40)]])
    (rows,) = create_instances(with_two_documents(text, "it"), settings(dupe_factor=50), IDS, (1,))
    labels = Counter()
    for a, b, label in unmasked(rows):
        assert ((a[0] < 1020) != (b[0] < 1020)) == label, "the random next is from the other half"
        labels[label] += 1
    assert min(labels.values()) > 30


def test_a_shard_that_takes_too_much_memory_is_refused(tmp_path, shard_text, monkeypatch):
    monkeypatch.setattr(instances, "MOST_WORKING_BYTES", 200_000)
    make(shard_text, dupe_factor=2)
    refused("x_training_0.txt .*more shards, by --n_training_shards", make, shard_text, dupe_factor=50)
    shard_text.write_text("].[.\n" * 5000, encoding="utf-8")  # more tokens than usual
    refused("x_training_0.txt .*more shards", make, shard_text, dupe_factor=2)


@pytest.mark.parametrize(
    "content, message",
    [
        *((text.encode(), " has .*fewer shards") for text in ("", "\n\n", "\u200b\n\n\u200b", "a0")),
        (b"a0\n" * 100_000 + b"b0 \xe9\n", r": not UTF-8 at byte 300,003 \(0xe9\)"),
        (None, " cannot be read .*--action sharding first"),
    ],
)
def test_text_without_two_sentences_or_that_cannot_be_read_is_refused(tmp_path, shard_text, content, message):
    shard_text.unlink() if content is None else shard_text.write_bytes(content)
    refused(f"{shard_text}{message}", make, shard_text)
    assert not (tmp_path / "x.tfrecord").exists()
