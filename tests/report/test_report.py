"""report.html: the numbers in it are those of the run folders, whatever state these are in."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest

from bert_tf.config import BertConfig
from bert_tf.report import write_page
from bert_tf.report.figures import Chart, draw, thin_out, write_value
from bert_tf.report.page import rank_rates, time_shares
from bert_tf.report.runs import differing_settings, read_run, read_runs

VOID = {"meta", "br", "link", "img", "input", "hr"}


class Reader(HTMLParser):
    """Checks that elements nest, and keeps the text that a reader sees."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open, self.text, self.tags = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data):
        if not {"style", "script"} & set(self.open):
            self.text.append(data)


def read_page(path):
    reader = Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    reader.close()
    assert reader.open == []
    return reader


def refuse_constant(name):
    raise AssertionError(f"{name} is not JSON: the browser would draw nothing")


def figures_of(path):
    """Title -> the chart's Plotly figure, read as strictly as a browser does."""
    page = path.read_text(encoding="utf-8")
    found = re.findall(r'<h3>([^<]*)</h3>.*?<script type="application/json">(.*?)</script>', page, re.S)
    return {title: json.loads(text, parse_constant=refuse_constant) for title, text in found}


def ticks(figure, name):
    """The updates at which a chart has a tick of this name."""
    return [shape["x0"] for shape in figure["layout"]["shapes"] if shape.get("name") == name]


def text_of(path):
    return re.sub(r"\s+", " ", " ".join(read_page(path).text))


def config(**changes):
    return {
        "settings": {
            "num_train_steps": 100,
            "warmup_steps": 20,
            "max_seq_length": 128,
            "max_predictions_per_seq": 20,
            "precision": "fp32",
        },
        "identity": {"init_checkpoint": None},
        "bert_config": BertConfig.preset("tiny", 8192).to_dict(),
        "data": {
            "instances": 1600,
            "files": 4,
            "counts": {"num_documents": 321, "random_next_share": 0.56, "padding_share": 0.115},
        },
        "versions": {"tensorflow": "2.15.1"},
        "planned": {"num_parameters": 4_416_000, "memory_mib": 2304},
        "command": ["python", "run_pretraining.py", "--model_dir=a folder"],
        "num_ranks": 2,
        "global_batch_size": 32,
        **changes,
    }


def train(update, **changes):
    return {
        "event": "train",
        "time_unix": 1.7e9 + update,
        "update": update,
        "total_loss": 9.0 - update / 50,
        "mlm_loss": 8.3 - update / 50,
        "nsp_loss": 0.7,
        "mlm_accuracy": update / 400,
        "nsp_accuracy": 0.6,
        "learning_rate": 1e-3,
        "loss_scaler": 1.0,
        "gradient_norm": 2.0,
        "skipped_updates": 0,
        "throughput_train": 50.0,
        "memory_peak_mib": 2048.0,
        **changes,
    }


def start(update=0, **changes):
    return {"event": "start", "time_unix": 1.7e9 + update, "update": update, **changes}


def end(update, reason="done"):
    return {"event": "end", "time_unix": 1.7e9 + update, "update": update, "reason": reason}


EVALUATION = {
    "event": "evaluation",
    "update": 100,
    "time_unix": 1.7e9 + 100,
    "masked_lm_accuracy": 0.2375,
    "masked_lm_loss": 6.125,
    "next_sentence_accuracy": 0.815,
    "next_sentence_loss": 0.5,
    "loss": 6.625,
}


def make_run(folder, events, **config_changes):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config(**config_changes)))
    (folder / "metrics.jsonl").write_text("".join(json.dumps({"time_unix": 1.7e9, **event}) + "\n" for event in events))
    return folder


def whole_phase(folder, **config_changes):
    updates = [train(update) for update in range(10, 101, 10)]
    events = [start(phase=folder.name), *updates, EVALUATION, end(100)]
    return make_run(folder, events, **config_changes)


def answering(folder, init_checkpoint, f1):
    events = [start(phase=folder.name), {"event": "train", "update": 5, "total_loss": 2.5}]
    events += [{"event": "evaluation", "update": 5, "f1": f1, "exact_match": f1 - 10}, end(5)]
    settings = {"num_train_steps": 5, "init_checkpoint": init_checkpoint}
    return make_run(folder, events, settings=settings)


def test_both_phases_and_fine_tuning_with_their_numbers(tmp_path):
    folders = [
        whole_phase(tmp_path / "phase_1"),
        whole_phase(tmp_path / "phase_2"),
        answering(tmp_path / "squad", "phase_2", 81.26),
        answering(tmp_path / "squad_random", None, 22.4),
    ]
    write_page(folders, tmp_path / "report.html", "Mine")
    text = text_of(tmp_path / "report.html")
    for shown in ("Mine", "6.125", "23.8 %", "81.5 %", "81.26", "71.26", "22.4", "12.4"):
        assert shown in text, shown
    for shown in ("Phase 1", "Phase 2", "finished, 100 updates", "from random weights"):
        assert shown in text, shown
    for shown in ("321", "11.5 %", "56 %", "1,600", "2.00 GiB", "50 sequences/s", "2.15.1"):
        assert shown in text, shown
    assert "run_pretraining.py \\ '--model_dir=a folder'" in text
    assert "on each of its 2 ranks" in text
    # The line of a model that guesses: ln 8192 + ln 2.
    line = figures_of(tmp_path / "report.html")["Total loss (MLM + NSP)"]["layout"]["shapes"][-1]
    assert (
        line["y0"] == pytest.approx(math.log(8192) + math.log(2)) and "Dashed: guessing, ln V + ln 2 = 9.704." in text
    )
    assert "MFU" not in text and "TFLOP/s" not in text  # neither was measured


def test_questions_with_and_without_an_answer_apart(tmp_path):
    scores = {
        "f1": 48.12,
        "exact_match": 48.12,
        "HasAns_f1": 0.25,
        "HasAns_exact": 0.0,
        "NoAns_f1": 99.5,
        "NoAns_exact": 99.5,
    }
    events = [start(), {"event": "train", "update": 5, "total_loss": 2.5}]
    folder = make_run(tmp_path / "squad", [*events, {"event": "evaluation", "update": 5, **scores}, end(5)])
    write_page([folder], tmp_path / "report.html")
    text = text_of(tmp_path / "report.html")
    assert "48.12 SQuAD, from random weights" in text
    assert "HasAns f1 0.25 HasAns exact 0 NoAns f1 99.5 NoAns exact 99.5" in text


def test_scores_of_a_classifier(tmp_path):
    scores = {"accuracy": 0.8125, "f1": 0.8765, "eval_loss": 0.4321}
    events = [start(phase="MRPC"), {"event": "train", "update": 5, "total_loss": 0.5}]
    events += [{"event": "evaluation", "update": 5, "global_step": 5, **scores}, end(5)]
    run = make_run(tmp_path / "run", events, settings={"task_name": "MRPC"})
    assert read_runs([run])[0].scores == scores
    write_page([run], tmp_path / "report.html")
    text = text_of(tmp_path / "report.html")
    assert "Task MRPC" in text and "f1 0.8765 eval loss 0.4321" in text and "SQuAD" not in text
    assert "Fine-tuning loss" in figures_of(tmp_path / "report.html")


def test_runs_of_one_name_are_told_apart(tmp_path):
    folders = [
        answering(tmp_path / "finetuned" / "squad", "phase_2", 81.26),
        answering(tmp_path / "finetuned_from_random" / "squad", None, 22.4),
        answering(tmp_path / "again" / "squad", "phase_2", 80.0),
    ]
    labels = [run.label for run in read_runs(folders)]
    assert labels[1] == "SQuAD, from random weights"
    assert labels[0] == "SQuAD, from the checkpoint (finetuned/squad)" and len(set(labels)) == 3
    write_page(folders[:2], tmp_path / "report.html")
    text = text_of(tmp_path / "report.html")
    assert "SQuAD, from the checkpoint SQuAD, from random weights total loss in training 2.5 2.5 f1 81.26 22.4" in text


def test_the_page_needs_no_other_file(tmp_path):
    write_page([whole_phase(tmp_path / "phase_1")], tmp_path / "report.html")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["phase_1", "report.html"]
    tags = read_page(tmp_path / "report.html").tags
    for tag, attributes in tags:
        assert tag not in ("link", "img", "iframe")
        assert not {"src", "href"} & set(attributes)
    # The browser refuses whatever plotly.js or a log might want to fetch.
    policy = next(attributes["content"] for _, attributes in tags if "http-equiv" in attributes)
    assert "default-src 'none'" in policy and "http" not in policy and "*" not in policy
    page = (tmp_path / "report.html").read_text()
    assert "@import" not in page.split("</style>")[0] and "url(" not in page.split("</style>")[0]


def test_phases_share_one_axis_of_updates(tmp_path):
    folders = [whole_phase(tmp_path / "phase_1"), whole_phase(tmp_path / "phase_2")]
    write_page(folders, tmp_path / "report.html")
    figure = figures_of(tmp_path / "report.html")["Total loss (MLM + NSP)"]
    assert figure["layout"]["xaxis"]["range"] == [0, 200]
    training = [trace for trace in figure["data"] if trace["name"] == "training"]
    held_out = [trace for trace in figure["data"] if trace["name"] == "held-out text"]
    assert [x for trace in training for x in trace["x"]] == list(range(10, 201, 10))
    assert training[1]["customdata"] == list(range(10, 101, 10)) and training[0]["y"][0] == 8.8
    assert [(trace["x"], trace["y"]) for trace in held_out] == [([100], [6.625]), ([200], [6.625])]
    assert [trace["showlegend"] for trace in training + held_out] == [True, False, True, False]
    warmups = [(shape["x0"], shape["x1"]) for shape in figure["layout"]["shapes"] if shape.get("name") == "warm-up"]
    assert warmups == [(0, 20), (100, 120)]


@pytest.mark.parametrize("content", [None, "", "not json\n", '{"event": "start"', "[1]\n7\n"])
def test_folders_without_a_whole_line(tmp_path, content):
    folder = tmp_path / "phase_1"
    folder.mkdir()
    if content is not None:
        (folder / "metrics.jsonl").write_text(content)
        (folder / "config.json").write_text(content)
    write_page([folder, tmp_path / "phase_2"], tmp_path / "report.html")
    assert "Phase 1 has not begun" in text_of(tmp_path / "report.html")


def test_no_folder_at_all(tmp_path):
    write_page([tmp_path / "phase_1"], tmp_path / "report.html")
    assert "No run has begun" in text_of(tmp_path / "report.html")


def test_a_run_under_way(tmp_path):
    folder = make_run(tmp_path / "phase_1", [start(phase="phase_1"), train(10)])
    write_page([folder], tmp_path / "report.html")
    text = text_of(tmp_path / "report.html")
    assert "under way or interrupted, 10 of 100 updates" in text
    assert "total loss in training 8.8" in text and "MLM accuracy" not in text


def test_a_run_just_begun(tmp_path):
    folder = make_run(tmp_path / "phase_1", [start(phase="phase_1")])
    write_page([folder], tmp_path / "report.html")
    assert "0 of 100 updates" in text_of(tmp_path / "report.html")


def test_a_stopped_run_says_why(tmp_path):
    folder = make_run(tmp_path / "phase_1", [start(), train(10), end(10, "SIGTERM")])
    write_page([folder], tmp_path / "report.html")
    assert "stopped (SIGTERM) after 10 of 100 updates" in text_of(tmp_path / "report.html")


def test_after_a_resume_the_last_line_of_an_update_wins(tmp_path):
    events = [start(), train(10), train(20, total_loss=5.0), train(25)]
    events += [start(10, resumed_from="ckpt"), train(20, total_loss=4.0), train(30)]
    run = read_run(make_run(tmp_path / "phase_1", events))
    assert run.series("total_loss") == [(10, 8.8), (20, 4.0), (30, 8.4)]  # 25 was forgotten
    assert run.restarts == [10]
    write_page([tmp_path / "phase_1"], tmp_path / "report.html")
    text = text_of(tmp_path / "report.html")
    assert "Resumed at update 10" in text
    assert ticks(figures_of(tmp_path / "report.html")["MLM loss"], "resumed") == [10]


def test_a_finished_run_started_again_was_not_interrupted(tmp_path):
    events = [start(), train(100), EVALUATION, end(100), start(100), EVALUATION, end(100)]
    assert read_run(make_run(tmp_path / "phase_1", events)).restarts == []


def test_a_line_cut_by_a_kill_is_left_out(tmp_path):
    folder = make_run(tmp_path / "phase_1", [start(), train(10)])
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"event": "train", "update": 20, "total_lo')
    assert read_run(folder).last_update == 10
    with open(folder / "metrics.jsonl", "a") as file:
        file.write("\n" + json.dumps(train(30)) + "\n")
    assert read_run(folder).last_update == 30


def test_numbers_that_are_none(tmp_path):
    events = [start(), train(10), train(20, total_loss="NaN", mlm_loss=math.nan)]
    events += [train(30, total_loss="Infinity", gradient_norm="-Infinity"), train(40)]
    folder = make_run(tmp_path / "phase_1", events)
    write_page([folder], tmp_path / "report.html")
    figure = figures_of(tmp_path / "report.html")["Total loss (MLM + NSP)"]
    assert [trace["y"] for trace in figure["data"]] == [[8.8, None, None, 8.2]]  # the line is broken there
    assert ticks(figure, "not finite") == [20, 30]


def test_values_of_the_wrong_kind_do_not_break_the_page(tmp_path):
    junk = ["", "x", None, [], {}, True, math.nan, math.inf, -1, 1e308, -1e308]
    names = list(train(1)) + ["f1", "exact_match", "masked_lm_loss", "mfu", "model_tflops"]
    events = [{"event": "start", "update": value} for value in junk]
    for kind in ("train", "evaluation", "warning", "end"):
        for value in junk:
            events.append({**dict.fromkeys(names, value), "event": kind, "update": 3, "time_unix": 1.7e9})
            events.append({**train(4), "event": kind, "update": value})
            events.append({**train(4), "event": kind, "time_unix": str(value)})
    for index, value in enumerate(junk):
        changes = dict.fromkeys(config(), value)
        folder = make_run(tmp_path / f"run_{index}", events, **changes)
        for section in ("settings", "bert_config", "data", "versions", "planned"):
            inner = {**config(), section: dict.fromkeys(config()[section], value)}
            (folder / "config.json").write_text(json.dumps(inner))
            write_page([folder], tmp_path / "report.html")
            figures_of(tmp_path / "report.html")
        (folder / "config.json").write_text(json.dumps(changes))
        write_page([folder], tmp_path / "report.html")
        figures_of(tmp_path / "report.html")


def test_values_that_only_some_lines_have(tmp_path):
    ranks = {"rank_secs_median": 1.0, "rank_secs_max": 2.0, "slowest_rank": 1, "update_secs": 1.0}
    shares = {"compute_share": "x", "input_share": 0.5}
    run = make_run(tmp_path / "run", [start(), train(10), train(20, **ranks, **shares)], num_ranks=0)
    assert rank_rates(read_run(run)) == "" and time_shares(read_run(run)) == "input 100 %"
    answers = answering(tmp_path / "squad", None, 50.0)
    for left in ("f1", "exact_match", "NoAns_f1"):
        scores = {
            "event": "evaluation",
            "update": 5,
            "f1": 1.0,
            "exact_match": 1.0,
            "NoAns_f1": 1.0,
            "NoAns_exact": 1.0,
        }
        kept = {name: value for name, value in scores.items() if name == "NoAns_f1" or name != left}
        with open(answers / "metrics.jsonl", "a") as file:
            file.write(json.dumps({"time_unix": 1.7e9, **kept}) + "\n")
        write_page([run, answers], tmp_path / "report.html")


def test_numbers_and_letters_that_no_file_of_ours_has(tmp_path):
    """Lines with them are left out, or shown as what they come nearest to."""
    folder = make_run(tmp_path / "run", [start(), train(10), train(20)], command=["run", "\udcff"])
    whole = read_run(folder).events["train"]
    with open(folder / "metrics.jsonl", "a") as file:
        for line in ("9" * 6000, "[" * 100_000, json.dumps({**train(30), "event": [], "time_unix": 1.7e9})):
            file.write(line + "\n")
        file.write(json.dumps({**train(40), "time_unix": 10**400}) + "\n")
        file.write(json.dumps({**train(50), "update": 10**400, "time_unix": 1.7e9}) + "\n")
    assert read_run(folder).events["train"] == whole
    write_page([folder], tmp_path / "report.html")


def test_text_is_escaped(tmp_path):
    evil = '</script><script>alert("1")</script>&"\''
    events = [start(phase=evil), train(10), {"event": "warning", "update": 10, "message": evil}]
    folder = make_run(tmp_path / "<b>&", events, command=[evil], versions={evil: evil}, device=evil)
    (folder / "config.json").write_text(
        json.dumps(config(command=[evil], versions={evil: evil}, device=evil, init_checkpoint=evil))
    )
    write_page([folder], tmp_path / "report.html", title=evil)
    reader = read_page(tmp_path / "report.html")
    figures = figures_of(tmp_path / "report.html")
    assert sum(tag == "script" for tag, _ in reader.tags) == 2 + len(figures)  # plotly.js, ours, and the charts' data
    assert not [tag for tag, _ in reader.tags if tag == "b" and "alert" in tag]
    assert "".join(reader.text).count('alert("1")') >= 5
    # Plotly reads HTML in names, too.
    assert "&lt;b&gt;&amp;" in figures["MLM loss"]["layout"]["annotations"][0]["text"]


def test_thousands_of_points_are_thinned_out(tmp_path):
    few, many = (
        make_run(tmp_path / str(count) / "phase_1", [start(), *(train(update) for update in range(1, count + 1))])
        for count in (2, 20000)
    )
    write_page([few], tmp_path / "few.html")
    write_page([many], tmp_path / "many.html")
    assert (tmp_path / "many.html").stat().st_size - (tmp_path / "few.html").stat().st_size < 300_000


def test_scale_and_skips_are_shown_where_there_are_any(tmp_path):
    quiet = make_run(tmp_path / "phase_1", [start(), train(10), train(20)])
    write_page([quiet], tmp_path / "report.html")
    assert not {"Loss scale", "Skipped updates"} & set(figures_of(tmp_path / "report.html"))
    events = [start(), train(10, loss_scaler=32768), train(20, skipped_updates=3)]
    loud = make_run(tmp_path / "loud" / "phase_1", events)
    write_page([loud], tmp_path / "report.html")
    assert {"Loss scale", "Skipped updates"} <= set(figures_of(tmp_path / "report.html"))


def test_where_the_time_went(tmp_path):
    shares = {"compute_share": 0.9, "input_share": 0.06, "all_reduce_share": 0.03, "host_share": 0.01}
    compiling = {"compute_share": 1.0, "input_share": 0.0, "all_reduce_share": 0.0, "host_share": 0.0}
    events = [
        start(),
        train(10, update_secs=9.0, **compiling),
        train(20, update_secs=1.0, **shares),
        train(30, update_secs=3.0, **{**shares, "compute_share": 0.5, "input_share": 0.46}),
    ]
    write_page([make_run(tmp_path / "run", events)], tmp_path / "report.html")
    assert "Time spent on compute 60 %, input 36 %, all-reduce 3 %, host 1 %" in text_of(tmp_path / "report.html")


def test_utilisation_is_shown_only_where_it_was_measured(tmp_path):
    events = [start(), train(10, model_tflops=120.0, mfu=0.384)]
    write_page([make_run(tmp_path / "phase_1", events)], tmp_path / "report.html")
    text = text_of(tmp_path / "report.html")
    assert "120 TFLOP/s" in text and "MFU 38.4 %" in text
    events = [start(), train(10, model_tflops=0.0125)]
    write_page([make_run(tmp_path / "small" / "phase_1", events)], tmp_path / "report.html")
    assert "12.5 GFLOP/s" in text_of(tmp_path / "report.html")


def test_packing_shows_in_tokens_and_rows(tmp_path):
    measured = dict(tokens_per_sec=3456.0, padding_share=0.0123, instances_per_row=2.5, model_tflops=0.04)
    events = [start(), train(10, **measured), train(20, **measured)]
    packed = dict(settings={**config()["settings"], "packing": True})
    write_page([make_run(tmp_path / "a", events, **packed)], tmp_path / "report.html")
    text = text_of(tmp_path / "report.html")
    assert "Real tokens a second, median 3,456" in text and "Padding in what was computed 1.23 %" in text
    assert "Instances in a row 2.5" in text
    assert "50 sequences/s, 40 GFLOP/s" in text
    write_page([make_run(tmp_path / "b", events)], tmp_path / "report.html")
    assert "Instances in a row" not in text_of(tmp_path / "report.html")


def test_an_older_page_is_replaced_in_one_move(tmp_path, monkeypatch):
    folder = whole_phase(tmp_path / "phase_1")
    write_page([folder], tmp_path / "report.html")
    before = (tmp_path / "report.html").read_text()

    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="No space left"):
        write_page([folder], tmp_path / "report.html", "Other")
    assert (tmp_path / "report.html").read_text() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["phase_1", "report.html"]


def test_the_report_imports_neither_tensorflow_nor_before_it_is_written_plotly():
    code = "import sys, bert_tf.report; sys.exit(bool({'tensorflow', 'plotly'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_values_are_written_for_reading():
    written = [write_value(value) for value in (0, 2.64126, 812.4, 12345.6, 131072.0, 0.00026299)]
    assert written == ["0", "2.641", "812.4", "12,346", "131,072", "0.000263"]
    assert write_value(0.6123, percent=True) == "61.2 %"


def test_thinning_keeps_ends_and_extremes_and_breaks():
    points = [(x, math.sin(x / 50)) for x in range(10_000)]
    points[5000] = (5000, 40.0)
    points[7000] = (7000, math.nan)
    thinned = thin_out(points, 100)
    assert len(thinned) <= 110
    assert thinned[0] == points[0] and thinned[-1] == points[-1]
    assert (5000, 40.0) in thinned
    assert any(math.isnan(y) for _, y in thinned)
    assert [x for x, _ in thinned] == sorted(x for x, _ in thinned)


def test_a_line_of_means_lies_over_many_reports(tmp_path):
    updates = [train(update, gradient_norm=1.0 + update % 2, mlm_loss=3.0) for update in range(1, 601)]
    run = read_run(make_run(tmp_path / "phase_1", [start(), *updates]))
    means, logged = draw(Chart("Gradient norm", "gradient_norm"), [run])["data"]
    assert set(means["y"]) == {1.5} and set(logged["y"]) == {1.0, 2.0}
    assert draw(Chart("MLM loss", "mlm_loss", usual=3.0), [run]) is None


def test_the_useful_share_of_the_time_is_told(tmp_path):
    """Killed after update 20 and gone on from 10: ten updates of 0.5 s are made twice."""
    events = [train(update, update_secs=0.5) for update in (10, 20)]
    run = make_run(tmp_path / "phase_1", [start(), *events, start(10), events[1], train(40, update_secs=0.5)])
    write_page([run], tmp_path / "report.html")
    assert "Useful share of the training time 50.0% of 0.7 min in 2 starts; updates lost and repeated 12.5%" in text_of(
        tmp_path / "report.html"
    )


def test_a_comparison_lays_runs_over_each_other_and_shows_what_differs(tmp_path):
    slow = dict(settings={**config()["settings"], "warmup_steps": 50}, commit="abc")
    folders = [whole_phase(tmp_path / "a" / "phase_1"), whole_phase(tmp_path / "b" / "phase_1", **slow)]
    folders += [answering(tmp_path / "c" / "squad", None, 81.26), answering(tmp_path / "d" / "squad", None, 22.4)]
    runs = read_runs(folders[:2])
    assert differing_settings(runs) == {"warmup_steps": [20, 50], "commit": [None, "abc"]}
    write_page(folders, tmp_path / "report.html", "Mine", comparing=True)
    text = text_of(tmp_path / "report.html")
    for shown in ("warmup_steps 20 50", "masked lm loss 6.125 6.125 - -", "f1 - - 81.26 22.4", "Phase 1 (b/phase_1)"):
        assert shown in text, shown
    assert 'class="card"' not in (tmp_path / "report.html").read_text()  # cards are of one run
    figure = figures_of(tmp_path / "report.html")["Total loss (MLM + NSP)"]
    lines = {(trace["name"], trace["line"]["color"]) for trace in figure["data"] if "line" in trace}
    assert lines == {("Phase 1 (a/phase_1)", "var(--c1)"), ("Phase 1 (b/phase_1)", "var(--c2)")}
    assert figure["layout"]["xaxis"]["range"] == [0, 100] and len(figure["data"]) == 4  # two lines, two held-out values
    write_page(folders[:1] * 2, tmp_path / "same.html", comparing=True)
    assert "All settings are the same" in text_of(tmp_path / "same.html")


def test_a_fifth_run_has_its_own_kind_of_line(tmp_path):
    runs = read_runs([make_run(tmp_path / str(number), [start(), train(10)]) for number in range(5)])
    looks = [tuple(trace["line"].values()) for trace in draw(Chart("", "mlm_loss", overlaid=True), runs)["data"]]
    assert len(set(looks)) == 5


def test_memory_and_the_rates_of_the_ranks_stand_beside_the_plan_and_the_whole(tmp_path):
    ranks = dict(rank_secs_median=0.5, rank_secs_max=0.8, slowest_rank=1, slowest_host="node<2>")
    reports = [
        train(10),
        *(train(10 * number, **ranks) for number in (2, 3, 4)),
        train(50, **{**ranks, "slowest_rank": 0}),
    ]
    planned = {"num_parameters": 4_416_000, "memory_mib": 2304}
    run = make_run(tmp_path / "run", [start(), *reports], device="CPU", planned=planned)
    write_page([run], tmp_path / "report.html")
    text = text_of(tmp_path / "report.html")
    assert "Highest memory use 2.00 GiB of rank 0, planned 2.25" in text
    assert "4.4 million parameters" in text
    rates = (
        "without waiting 32 sequences/s on the median rank, 20 on the slowest; it is rank 1 on node<2> in 75 % of the"
    )
    assert f"Throughput of a rank {rates} reports" in text


def test_command_compares_several_runs(tmp_path):
    runs = [str(whole_phase(tmp_path / name)) for name in "ab"]
    command = [sys.executable, "-m", "bert_tf.report", "--output", str(tmp_path / "page.html")]
    subprocess.run([*command, *runs], check=True)
    assert "2 runs compared" in text_of(tmp_path / "page.html")
    refused = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True)
    assert refused.returncode == 2 and f"here {runs[0]} or {runs[1]}" in refused.stderr


def test_command_writes_a_page_or_says_what_is_no_run(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/metrics.jsonl").write_text('{"event": "start", "update": 0, "time_unix": 1.7e9}\n')
    command = [sys.executable, "-m", "bert_tf.report", "--output", str(tmp_path / "page.html"), str(tmp_path / "run")]
    refused = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True)
    assert refused.returncode == 2 and f"{tmp_path}: not a run folder" in refused.stderr
    assert not (tmp_path / "page.html").exists()
    for _ in range(2):  # a page of ours is replaced
        assert not subprocess.run(command, check=True, capture_output=True, text=True).stderr
    read_page(tmp_path / "page.html")


def test_command_counts_the_lines_that_it_cannot_read(tmp_path):
    run = make_run(tmp_path / "run", [start(), train(10)])
    with open(run / "metrics.jsonl", "ab") as file:
        file.write(b'{"event": "train", "upda\n\n\xff\xfe7\n')
    command = [sys.executable, "-m", "bert_tf.report", "--output", str(tmp_path / "page.html"), str(run)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stderr.startswith(f"warning: {run}/metrics.jsonl: 2 line(s) are no reports of a run")
    assert "Unreadable lines of metrics.jsonl 2 " in text_of(tmp_path / "page.html")


def test_command_overwrites_only_a_page_of_its_own(tmp_path):
    run = make_run(tmp_path / "run", [start(), train(10)])
    log = run / "metrics.jsonl"
    was = log.read_bytes()
    for output, fault in (
        (log, f"--output={log} is a file that this program has not written, so it is not overwritten"),
        (log / "page.html", f"--output={log}/page.html: {log} is a file, and must be a folder; name another"),
        ("", "argument --output: must not be empty"),
    ):
        command = [sys.executable, "-m", "bert_tf.report", "--output", str(output), str(run)]
        refused = subprocess.run(command, capture_output=True, text=True)
        assert refused.returncode == 2 and refused.stderr.startswith(f"error: {fault}"), refused.stderr
        assert refused.stderr.count("\n") == 1 and log.read_bytes() == was


def test_no_text_lies_on_the_curves_or_runs_out_of_a_chart(tmp_path):
    """The dashed line's name is in the caption, and a short last phase's name ends where the chart does."""
    runs = [whole_phase(tmp_path / "phase_1"), make_run(tmp_path / "phase_2", [start(), train(20), end(20)])]
    write_page(runs, tmp_path / "report.html")
    figure = figures_of(tmp_path / "report.html")["Next-sentence accuracy"]
    assert not any("label" in shape for shape in figure["layout"]["shapes"])
    assert "Dashed: always the commoner answer, 56 %." in text_of(tmp_path / "report.html")
    first, last = figure["layout"]["annotations"]
    assert (first["x"], first.get("xanchor")) == (0, None) and (last["x"], last["xanchor"]) == (120, "right")
