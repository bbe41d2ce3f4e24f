"""report.html: the numbers in it are those of the run folders, whatever state these are in."""

from __future__ import annotations

import html
import json
import math
import re

import pytest

from bert_tf.bert_config import BertConfig
from bert_tf.report import write_page
from bert_tf.report.__main__ import main
from bert_tf.report.page import draw, thin_out
from bert_tf.report.runs import differing_settings, read_run, read_runs
from tests.refusals import refused


def refuse_constant(name):
    raise AssertionError(f"{name} is not JSON: the browser would draw nothing")


class Page:
    """A page of ours: what a reader sees, its opening tags, and its charts by title."""

    def __init__(self, path):
        self.html = path.read_text(encoding="utf-8")
        body = re.sub(r"<(style|script)\b.*?</\1>", " ", self.html, flags=re.S)
        opened, closed = (re.findall(pattern, body) for pattern in (r"<(table|div|tr|td|th|details|p)\b", r"</(\w+)>"))
        assert all(opened.count(tag) == closed.count(tag) for tag in set(opened)), "elements are closed"
        self.tags = re.findall(r"<[a-z][^>]*>", self.html)
        self.text = " ".join(html.unescape(re.sub(r"<[^>]*>", " ", body)).split())
        charts = re.findall(r'<h3>([^<]*)</h3>.*?<script type="application/json">(.*?)</script>', self.html, re.S)
        self.figures = {title: json.loads(text, parse_constant=refuse_constant) for title, text in charts}


@pytest.fixture
def page(tmp_path, monkeypatch):
    """Writes and reads a page of these run folders, without Plotly's 4 MB."""
    monkeypatch.setattr("plotly.offline.get_plotlyjs", lambda: "")

    def write(*folders, **options):
        write_page(folders, tmp_path / "report.html", **options)
        return Page(tmp_path / "report.html")

    return write


def ticks(figure, name):
    """The updates at which a chart has a tick of this name."""
    return [shape["x0"] for shape in figure["layout"]["shapes"] if shape.get("name") == name]


SETTINGS = dict(num_train_steps=100, warmup_steps=20, max_seq_length=128, max_predictions_per_seq=20, precision="fp32")


CONFIG = dict(
    settings=SETTINGS,
    identity={"init_checkpoint": None},
    bert_config=BertConfig.preset("tiny", 8192).to_dict(),
    data={"instances": 1600, "counts": {"num_documents": 321, "random_next_share": 0.56, "padding_share": 0.115}},
    versions={"tensorflow": "2.15.1"},
    planned={"num_parameters": 4_416_000, "memory_mib": 2304},
    command=["python", "run_pretraining.py", "--model_dir=a folder"],
    num_ranks=2,
    global_batch_size=32,
)


def train(update, **changes):
    loss = {"total_loss": 9.0 - update / 50, "mlm_loss": 8.3 - update / 50, "nsp_loss": 0.7}
    accuracy = {"mlm_accuracy": update / 400, "nsp_accuracy": 0.6}
    state = dict(learning_rate=1e-3, loss_scaler=1.0, gradient_norm=2.0, skipped_updates=0)
    speed = dict(throughput_train=50.0, memory_peak_mib=2048.0)
    return {"event": "train", "update": update, **loss, **accuracy, **state, **speed, **changes}


def start(update=0, **changes):
    return {"event": "start", "update": update, "total_updates": 100, **changes}


def end(update, reason="done"):
    return {"event": "end", "update": update, "reason": reason}


EVALUATION = dict(event="evaluation", update=100, masked_lm_accuracy=0.2375, masked_lm_loss=6.125, loss=6.625)
EVALUATION |= dict(next_sentence_accuracy=0.815, next_sentence_loss=0.5)


def make_run(folder, events, **changes):
    """A run folder with these events; `changes` of its config.json."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    timed = (event if "time_unix" in event else {"time_unix": 1.7e9 + event["update"], **event} for event in events)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in timed))
    return folder


def whole_phase(folder, **config_changes):
    updates = [train(update) for update in range(10, 101, 10)]
    events = [start(phase=folder.name), *updates, EVALUATION, end(100)]
    return make_run(folder, events, **config_changes)


def test_without_next_sentence_nothing_is_said_of_it(tmp_path, page):
    without = {"settings": {**SETTINGS, "no_next_sentence": True}}
    left_out = [name for name in train(10) if name.startswith("nsp")]
    events = [{name: value for name, value in train(update).items() if name not in left_out} for update in (10, 20)]
    shown = page(make_run(tmp_path / "phase_1", [start(), *events, end(20)], **without))
    assert left_out and "MLM loss" in shown.figures and "Masked-word accuracy" in shown.figures
    assert not [name for name in shown.figures if "NSP" in name or "Next-sentence" in name]
    assert "An instance is a piece of text with" in shown.text and "sentence pairs" not in shown.text


def answering(folder, init_checkpoint, f1):
    events = [start(phase=folder.name), {"event": "train", "update": 5, "total_loss": 2.5}]
    events += [{"event": "evaluation", "update": 5, "f1": f1, "exact_match": f1 - 10}, end(5)]
    settings = {"num_train_steps": 5, "init_checkpoint": init_checkpoint, "task_name": "squad"}
    return make_run(folder, events, settings=settings)


def test_both_phases_and_fine_tuning_with_their_numbers(tmp_path, page):
    folders = [whole_phase(tmp_path / "phase_1"), whole_phase(tmp_path / "phase_2")]
    folders += [answering(tmp_path / "squad", "phase_2", 81.26), answering(tmp_path / "random", None, 22.4)]
    shown = page(*folders, title="Mine")
    for text in (
        *("Mine", "6.125", "23.8 %", "81.5 %", "81.26", "71.26", "22.4", "12.4"),
        *("Phase 1", "Phase 2", "finished, 100 updates", "from random weights", "on each of its 2 ranks"),
        *("321", "11.5 %", "56 %", "1,600", "2.00 GiB", "50 sequences/s", "2.15.1"),
        "run_pretraining.py \\ '--model_dir=a folder'",
        "Dashed: guessing, ln V + ln 2 = 9.704.",  # the loss of a model that guesses: ln 8192 + ln 2
    ):
        assert text in shown.text, text
    # What is asked first comes first, beside each other; a figure has one name, wherever it was measured.
    _, _, came = shown.text.partition("What came of it")
    assert re.search(r"both from 0 to 100. SQuAD, from the checkpoint .* from random weights F1 81.26 22.4 exact", came)
    for text in ("MLM accuracy 0.2375 0.2375", "MLM accuracy in training 0.25 0.25", "total loss 6.625 6.625"):
        assert text in came, text
    line = shown.figures["Total loss (MLM + NSP)"]["layout"]["shapes"][-1]
    assert line["y0"] == pytest.approx(math.log(8192) + math.log(2))
    assert "MFU" not in shown.text and "TFLOP/s" not in shown.text  # neither was measured
    assert not {"Loss scale", "Skipped updates"} & set(shown.figures)


def evaluated(**scores):
    return {"event": "evaluation", "update": 5, **scores}


TUNED = [start(), {"event": "train", "update": 5, "total_loss": 2.5}]
COMPILING = dict(update_secs=9.0, compute_share=1.0, input_share=0.0, all_reduce_share=0.0, host_share=0.0)
SHARES = dict(update_secs=1.0, compute_share=0.9, input_share=0.06, all_reduce_share=0.03, host_share=0.01)
TIMES = COMPILING, SHARES, {**SHARES, "update_secs": 3.0, "compute_share": 0.5, "input_share": 0.46}
PACKED = dict(tokens_per_sec=3456.0, padding_share=0.0123, instances_per_row=2.5, model_tflops=0.04)
RANKS = dict(rank_secs_median=0.5, rank_secs_max=0.8, slowest_rank=1, slowest_host="node<2>")


@pytest.mark.parametrize(
    "events, texts, changes",
    [
        ([start(phase="run"), train(10)], "under way or interrupted, 10 of 100 updates | in training 8.8", {}),
        ([start(), train(10), end(10, "SIGTERM")], "stopped (SIGTERM) after 10 of 100 updates", {}),
        (
            [start(), *(train(update, **shares) for update, shares in zip((10, 20, 30), TIMES))],
            "Time spent on compute 60 %, input 36 %, all-reduce 3 %, host 1 %",
            {},
        ),
        ([start(), train(10, model_tflops=120.0, mfu=0.384)], "120 TFLOP/s | MFU 38.4 %", {}),
        ([start(), train(10, loss_scaler=32768), train(20, skipped_updates=3)], "Skipped updates 3 | Loss scale", {}),
        (
            [start(), train(10, **PACKED), train(20, **PACKED)],
            "Real tokens a second, median 3,456 | Padding in what was computed 1.23 % | Instances in a row 2.5 | "
            "50 sequences/s, 40 GFLOP/s",
            {"settings": {**SETTINGS, "packing": True}},
        ),
        (
            [start(), train(10), *(train(x, **RANKS) for x in (20, 30, 40)), train(50, **{**RANKS, "slowest_rank": 0})],
            "Highest memory use 2.00 GiB of rank 0, planned 2.25 | 4.4 million parameters | without waiting 32 "
            "sequences/s on the median rank, 20 on the slowest; it is rank 1 on node<2> in 75 % of the reports",
            {"device": "CPU"},
        ),
        (
            [*TUNED, evaluated(f1=48.12, exact_match=48.12, HasAns_f1=0.25, HasAns_exact=0.0, NoAns_f1=99.5), end(5)],
            "48.12 Run, from random weights | exact match (EM) 48.12 HasAns F1 0.25 HasAns exact 0 NoAns F1 99.5",
            {"settings": {"task_name": "squad", "max_seq_length": 384}},
        ),
        (
            [*TUNED, evaluated(global_step=5, accuracy=0.8125, f1=0.8765, eval_loss=0.4321), end(5)],
            "Task MRPC | accuracy 0.8125 F1 0.8765 total loss 0.4321 measured after update 5 total loss in",
            {"settings": {"task_name": "MRPC"}, "main_score": "accuracy"},
        ),
    ],
)
def test_what_is_shown_of_one_run(tmp_path, page, events, texts, changes):
    shown = page(make_run(tmp_path / "run", events, **changes))
    for text in texts.split(" | "):
        assert text in shown.text
    assert "None hidden" not in shown.text
    if task := changes.get("settings", {}).get("task_name"):
        assert "Fine-tuning loss" in shown.figures and ("SQuAD" in shown.text) == (task == "squad")
    assert ("Instances in a row" in shown.text) == ("packing" in changes.get("settings", {}))


def test_scores_while_training_are_a_curve_and_those_of_the_best_weights_the_figures(tmp_path, page):
    scores = {2: 0.5, 4: 0.875, 6: 0.75, 7: 0.7}
    events = [start(total_updates=9), *(train(update, train_accuracy=update / 10) for update in range(1, 8))]
    events += [{**evaluated(accuracy=scores[update], eval_loss=0.4), "update": update} for update in (*scores, 4)]
    about = {"settings": {"task_name": "MRPC"}, "main_score": "accuracy"}
    shown = page(make_run(tmp_path / "run", [*events, end(7, "early_stopping")], **about))
    trained, held_out = shown.figures["accuracy on held-out data"]["data"]
    assert trained["x"] == list(range(1, 8)) and (held_out["x"], held_out["y"]) == ([*scores], [*scores.values()])
    assert [len(trace["x"]) for trace in shown.figures["Fine-tuning loss"]["data"]] == [7, 4]
    assert "finished early, as its score got no better, after 7 of 9 updates" in shown.text
    assert "accuracy 0.875 total loss 0.4 measured after update 4" in shown.text


def test_data_that_another_program_scores_later_do_not_mix_with_the_runs_own(tmp_path, page):
    """Such as a test file, or one without labels, which gives a speed and no scores."""
    own = {"settings": {"task_name": "MRPC"}, "main_score": "accuracy"}
    events = [start(), train(5), train(10), end(10)]
    scored = [{**evaluated(accuracy=accuracy), "update": update} for update, accuracy in ((5, 0.5), (10, 0.625))]
    later = [{**evaluated(**figures), "update": 10} for figures in ({"accuracy": 0.25}, {"latency_50_ms": 3.0})]
    shown = page(make_run(tmp_path / "scored", [*events[:-1], *scored, events[-1], *later], **own))
    assert shown.figures["accuracy on held-out data"]["data"][-1]["y"] == [0.5, 0.625]
    assert "accuracy 0.625 measured after update 10" in shown.text
    assert "accuracy 0.25 measured after update 10" in page(make_run(tmp_path / "not", [*events, *later], **own)).text


def test_the_page_needs_no_other_file(tmp_path, page):
    shown = page(whole_phase(tmp_path / "phase_1"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["phase_1", "report.html"]
    assert not [tag for tag in shown.tags if re.match(r"<(link|img|iframe)\b|.*\s(src|href)=", tag)]
    # The browser refuses whatever plotly.js or a log might want to fetch.
    policy = next(tag for tag in shown.tags if "http-equiv" in tag)
    assert "default-src 'none'" in policy and "http:" not in policy and "https:" not in policy and "*" not in policy
    style = shown.html.split("</style>")[0]
    assert "@import" not in style and "url(" not in style


def test_phases_share_one_axis_of_updates(tmp_path, page):
    """The dashed line's name is in the caption, and a short last phase's name ends where the chart does."""
    runs = [whole_phase(tmp_path / "phase_1"), whole_phase(tmp_path / "phase_2")]
    figure = page(*runs).figures["Total loss (MLM + NSP)"]
    assert figure["layout"]["xaxis"]["range"] == [0, 200]
    training = [trace for trace in figure["data"] if trace["name"] == "training"]
    held_out = [trace for trace in figure["data"] if trace["name"] == "held-out text"]
    assert [x for trace in training for x in trace["x"]] == list(range(10, 201, 10))
    assert training[1]["customdata"] == list(range(10, 101, 10)) and training[0]["y"][0] == 8.8
    assert [(trace["x"], trace["y"]) for trace in held_out] == [([100], [6.625]), ([200], [6.625])]
    assert [trace["showlegend"] for trace in training + held_out] == [True, False, True, False]
    warmups = [(shape["x0"], shape["x1"]) for shape in figure["layout"]["shapes"] if shape.get("name") == "warm-up"]
    assert warmups == [(0, 20), (100, 120)]

    shown = page(runs[0], make_run(tmp_path / "short", [start(), train(20), end(20)]))
    layout = shown.figures["Next-sentence accuracy"]["layout"]
    assert not any("label" in shape for shape in layout["shapes"])
    assert "Dashed: always the commoner answer, 56 %." in shown.text
    first, last = layout["annotations"]
    assert (first["x"], first.get("xanchor")) == (0, None) and (last["x"], last["xanchor"]) == (120, "right")


@pytest.mark.parametrize("content", [None, '{"event": "start"', "[1]\n7\n"])
def test_folders_without_a_whole_line(tmp_path, page, content):
    folder = tmp_path / "phase_1"
    assert "No run has begun" in page(folder).text
    folder.mkdir()
    if content is not None:
        (folder / "metrics.jsonl").write_text(content)
    assert "Phase 1 has not begun" in page(folder, tmp_path / "phase_2").text


def test_after_a_resume_the_last_line_of_an_update_wins(tmp_path, page):
    events = [start(), train(10), train(20, total_loss=5.0), train(25)]
    events += [start(10, resumed_from="ckpt"), train(20, total_loss=4.0), train(30)]
    run = read_run(make_run(tmp_path / "phase_1", events))
    assert run.series("total_loss") == [(10, 8.8), (20, 4.0), (30, 8.4)]  # 25 was forgotten
    assert run.restarts == [10]
    shown = page(tmp_path / "phase_1")
    assert "Resumed at update 10" in shown.text and ticks(shown.figures["MLM loss"], "resumed") == [10]
    events = [start(), train(100), EVALUATION, end(100), start(100), EVALUATION, end(100)]
    assert read_run(make_run(tmp_path / "phase_2", events)).restarts == []  # a finished run that was started again


def test_a_clock_that_was_set_back_gives_no_negative_time(tmp_path, page):
    events = [start(time_unix=9000), train(10, time_unix=9060), start(10, time_unix=5000), train(20, time_unix=5120)]
    assert "Pre-training time 3.0 min" in page(make_run(tmp_path / "phase_1", events)).text


def test_numbers_that_are_none(tmp_path, page):
    events = [start(), train(10), train(20, total_loss="NaN", mlm_loss=math.nan)]
    events += [train(30, total_loss="Infinity", gradient_norm="-Infinity"), train(40)]
    figure = page(make_run(tmp_path / "phase_1", events)).figures["Total loss (MLM + NSP)"]
    assert [trace["y"] for trace in figure["data"]] == [[8.8, None, None, 8.2]]  # the line is broken there
    assert ticks(figure, "not finite") == [20, 30]


def test_a_line_cut_by_a_kill_is_left_out_and_a_name_that_is_no_text_shown(tmp_path, page):
    folder = make_run(tmp_path / "run", [start(), train(10), train(20)], command=["run", "\udcff"])
    whole = read_run(folder).events["train"]
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"event": "train", "update": 20, "total_lo')
    assert read_run(folder).events["train"] == whole
    page(folder)


@pytest.mark.parametrize(
    "fields",
    [
        *({"update": update} for update in (None, "10", True, 10.5, 10**400, [])),
        *({"time_unix": time} for time in (None, "now", {}, math.nan, 1e308, 10**400)),
        *({"event": kind} for kind in (None, 1, [], {})),
    ],
    ids=repr,
)
def test_a_line_whose_fields_are_no_events_is_left_out(tmp_path, page, fields):
    page(make_run(tmp_path / "run", [start(), train(10), {**train(20), "time_unix": 2e9, **fields}]))
    assert read_run(tmp_path / "run").last_update == 10


def test_settings_that_are_none(tmp_path, page):
    """In a config.json that somebody has written, and in a line of another program."""
    settings = {**SETTINGS, "warmup_steps": "20", "max_seq_length": []}
    events = [start(total_updates="many", depth=[]), train(10, gradient_norm=10**400)]
    run = make_run(tmp_path / "run", events, settings=settings, identity={}, data=5)
    assert "10 of 10 updates" in page(run).text
    assert "10 of 10 updates" in page(make_run(tmp_path / "other", events, settings=0)).text


def test_text_is_escaped(tmp_path, page):
    evil = '</script><script>alert("1")</script>&"\''
    events = [start(phase=evil), train(10), {"event": "warning", "update": 10, "message": evil}]
    changes = dict(command=[evil], versions={evil: evil}, device=evil, init_checkpoint=evil)
    shown = page(make_run(tmp_path / "<b>&", events, **changes), title=evil)
    scripts = sum(tag.startswith("<script") for tag in shown.tags)
    assert scripts == 2 + len(shown.figures)  # plotly.js, ours, and the charts' data
    assert shown.text.count('alert("1")') >= 5
    # Plotly reads HTML in names, too.
    assert "&lt;b&gt;&amp;" in shown.figures["MLM loss"]["layout"]["annotations"][0]["text"]


def test_long_series_are_thinned_and_a_line_of_means_lies_over_them(tmp_path):
    """Ends, extremes and breaks stay."""
    points = [(x, math.sin(x / 50)) for x in range(10_000)]
    points[5000], points[7000] = (5000, 40.0), (7000, math.nan)
    thinned = thin_out(points, 100)
    assert len(thinned) <= 110 and (5000, 40.0) in thinned and any(math.isnan(y) for _, y in thinned)
    assert (thinned[0], thinned[-1]) == (points[0], points[-1])
    assert thinned == sorted(thinned, key=lambda each: each[0])
    updates = [train(update, gradient_norm=1.0 + update % 2, mlm_loss=3.0) for update in range(1, 601)]
    run = read_run(make_run(tmp_path / "phase_1", [start(), *updates]))
    means, logged = draw([run], "Gradient norm", "gradient_norm")["data"]
    assert set(means["y"]) == {1.5} and set(logged["y"]) == {1.0, 2.0}
    assert draw([run], "MLM loss", "mlm_loss", usual=3.0) is None


def test_a_comparison_lays_runs_over_each_other_and_shows_what_differs(tmp_path, page):
    slow = dict(settings={**SETTINGS, "warmup_steps": 50}, commit="abc")
    folders = [whole_phase(tmp_path / "a" / "phase_1"), whole_phase(tmp_path / "b" / "phase_1", **slow)]
    folders += [answering(tmp_path / "c" / "squad", None, 81.26), answering(tmp_path / "d" / "squad", "phase_2", 22.4)]
    labels = [run.label for run in read_runs([*folders, answering(tmp_path / "e" / "squad", "phase_2", 22.4)])]
    assert labels[2] == "SQuAD, from random weights"
    assert labels[3] == "SQuAD, from the checkpoint (d/squad)" and len(set(labels)) == 5
    assert differing_settings(read_runs(folders[:2])) == {"warmup_steps": [20, 50], "commit": [None, "abc"]}
    shown = page(*folders, title="Mine", comparing=True)
    for text in ("warmup_steps 20 50", "MLM loss 6.125 6.125", "F1 22.4 81.26", "Phase 1 (b/phase_1)"):
        assert text in shown.text, text
    assert 'class="card"' not in shown.html  # cards are of one run
    figure = shown.figures["Total loss (MLM + NSP)"]
    lines = {(trace["name"], trace["line"]["color"]) for trace in figure["data"] if "color" in trace["line"]}
    assert lines == {("Phase 1 (a/phase_1)", "var(--c1)"), ("Phase 1 (b/phase_1)", "var(--c2)")}
    assert figure["layout"]["xaxis"]["range"] == [0, 100] and len(figure["data"]) == 4  # two lines, two held-out values
    assert "All settings are the same" in page(*folders[:1] * 2, comparing=True).text
    runs = read_runs([make_run(tmp_path / str(number), [start(), train(10)]) for number in range(5)])
    looks = [tuple(trace["line"].values()) for trace in draw(runs, "", "mlm_loss", overlaid=True)["data"]]
    assert len(set(looks)) == 5  # a fifth run has its own kind of line


def report(*arguments):
    main.__wrapped__(["report", *map(str, arguments)])


def test_the_command_writes_a_page_or_says_what_is_no_run(tmp_path):
    runs, output = [whole_phase(tmp_path / name) for name in "ab"], tmp_path / "page.html"
    refused(f"{tmp_path}: not a run folder.*here {runs[0]} or {runs[1]}", report, "--output", output, runs[0], tmp_path)
    assert not output.exists()
    for _ in range(2):  # a page of ours is replaced
        report("--output", output, *runs)
    assert "2 runs compared" in Page(output).text
    log = runs[0] / "metrics.jsonl"
    was = log.read_bytes()
    message = f"^--output={log} is a file that this program has not written, so it is not overwritten"
    refused(message, report, "--output", log, *runs)
    assert log.read_bytes() == was


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("config.json", None, "or no config.json; name the --model_dir"),
        ("config.json", b'{"identity": {', "is not valid JSON"),
        ("config.json", b'{"model_type": "bert"}', "holds no settings of a run"),
        ("metrics.jsonl", b'no event\n{"loss": 1}\n', "it has no metrics.jsonl with events"),
    ],
)
def test_what_is_no_run_is_said(tmp_path, name, content, words):
    folder = whole_phase(tmp_path / "a")
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    refused(words, report, folder, "--output", tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()
