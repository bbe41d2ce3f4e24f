"""TensorFlow and Horovod that do not fit: other versions, another Keras, GPUs without code, by stand-ins for them."""

import itertools
import json
import os
import re
import sys
import tempfile

import pytest

from bert_tf.base.machine import launchers, software
from bert_tf.doctor.findings import ask_python
from tests.processes import ROOT, answer
from tests.refusals import refused
from tests.stand_ins import nvidia_smi

# What the wheels' get_build_info() says, and an image that is built for later GPUs, too.
WHEEL_2_15 = {"cuda_version": "12.2", "cuda_compute_capabilities": "sm_50 sm_60 sm_70 sm_75 compute_80".split()}
WHEEL_2_17 = {"cuda_version": "12.3", "cuda_compute_capabilities": "sm_60 sm_70 sm_80 sm_89 compute_90".split()}
WHEEL_2_20 = {"cuda_version": "12.5.1", "cuda_compute_capabilities": "sm_60 sm_70 sm_80 sm_89 compute_90".split()}
NEW_IMAGE = {"cuda_version": "12.8", "cuda_compute_capabilities": "sm_75 sm_80 sm_90 sm_100 compute_120".split()}


@pytest.fixture
def gpus(tmp_path, monkeypatch):
    """Puts an nvidia-smi in front of PATH that lists GPUs of these compute capabilities."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}")
    return lambda *capabilities: nvidia_smi(tmp_path / "bin", *capabilities)


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """Puts a package without modules in front of the installed ones, for programs that a test starts."""
    folder = tmp_path / "packages"
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{folder}")
    monkeypatch.setenv("RESULTS_DIR", str(tmp_path / "run"))

    def write(name, version, **files):
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "__init__.py").write_text(f"__version__ = {version!r}\n")
        metadata = folder / f"{name}-{version}.dist-info" / "METADATA"
        metadata.parent.mkdir()
        metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        for path, text in files.items():
            file = folder / name / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

    return write


def refused_start(command, folder):
    """The line with which a program ends before it has written anything."""
    done = answer(sys.executable, *command, cwd=folder)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert done.stderr.startswith("error: ") and not (folder / "run").exists()
    return done.stderr


STARTS = {
    "pre-training": ["-m", "bert_tf.programs.pretraining", "--input_files=x", "--model_dir=run", "--num_train_steps=1"],
    "questions": [str(ROOT / "run_squad.py"), "--model_dir=run", "--mode=train", "--train_file=x"],
    "launcher": "-m bert_tf.launch pretraining_lamb 64 8 8 7.5e-4 5e-4 fp16 true 1".split(),
}


# --- Versions ------------------------------------------------------------------------------------


def test_what_can_be_installed_is_supported():
    assert set(software.SUPPORTED) > {folder.name for folder in (ROOT / "requirements").glob("2.*")}


@pytest.mark.parametrize("version", ["1.15.5", "2.14.1", "2.16.2", "2.22.0", "3.0.0rc1"])
def test_a_version_that_was_never_tried_is_named_with_those_that_were(version):
    message = f"^TensorFlow {version} is installed, and one of {', '.join(software.SUPPORTED)} is needed: .*setup.sh"
    refused(message, software.check_version, version)


def test_keras_3_without_keras_2(monkeypatch):
    monkeypatch.setattr(software, "is_installed", lambda name: name != "tf_keras")
    software.check_version("2.15.0+nv24.3")
    message = r"2\.17\.0\+nv25\.2 contains Keras 3.*install --no-deps tf_keras==2\.17\.\*'"
    refused(message, software.check_version, "2.17.0+nv25.2")
    monkeypatch.setattr(software, "is_installed", lambda name: True)
    software.check_version("2.17.0+nv25.2")


def test_without_tensorboard(monkeypatch):
    """TensorFlow 2.21 no longer brings it."""
    monkeypatch.setattr(software, "is_installed", lambda name: name != "tensorboard")
    message = r"2\.21\.0 writes no summaries without TensorBoard: pip install tensorboard$"
    refused(message, software.check_version, "2.21.0")


@pytest.mark.parametrize("command", STARTS.values(), ids=STARTS)
def test_a_start_refuses_another_version_before_it_imports_it(packages, tmp_path, command):
    packages("tensorflow", "2.16.2")  # it has nothing that could be used
    assert "TensorFlow 2.16.2 is installed, and one of 2.15, 2.17" in refused_start(command, tmp_path)


def test_no_room_for_temporary_files(monkeypatch):
    """As on a full disk; who imports TensorFlow then gets a traceback, and horovodrun says that it has no Gloo."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc/self/fdinfo"])
    message = "No usable temporary directory found in .*fdinfo.*; make room there, or .* by TMPDIR"
    refused(message, launchers.Start(2, 0, {}).check_tensorflow)
    refused(message, ask_python, "import tensorflow", "setup.sh repairs that")


def test_the_library_refuses_it_too_and_the_preparation_does_not(packages):
    packages("tensorflow", "2.16.2")
    done = answer(sys.executable, "-c", "from bert_tf import from_pretrained")
    assert done.stderr.splitlines()[-1].startswith("bert_tf.base.errors.UserError: TensorFlow 2.16.2 is installed")
    done = answer(sys.executable, ROOT / "data/bertPrep.py", "--help")
    assert done.returncode == 0, done.stderr


def test_a_choice_of_keras_for_other_programs_changes_nothing():
    """As in NVIDIA's image 25.02, and in the profile of who uses later versions."""
    code = "from bert_tf.base.tensorflow import keras; print(keras.layers.Dense.__module__)"
    done = answer(sys.executable, "-c", code, TF_USE_LEGACY_KERAS="1", PYTHONPATH=str(ROOT))
    assert re.match(r"(tf_)?keras\.src\.layers", done.stdout), done.stderr


# --- GPUs ----------------------------------------------------------------------------------------


def test_the_table_of_gpus_agrees_with_the_check():
    page = (ROOT / "docs/machines.md").read_text()
    rows = re.findall(r"^\| ([^|]+) \| (\d[\d., ]+) \| (\w+) \| (\w+) \|", page, re.MULTILINE)
    assert len(rows) == 7
    for gpus_named, capabilities, *said in rows:
        for word, builds in zip(said, ([WHEEL_2_15], [WHEEL_2_17, WHEEL_2_20])):
            for build, capability in itertools.product(builds, capabilities.split(", ")):
                major, minor = map(int, capability.split("."))
                codes = [code for code in build["cuda_compute_capabilities"] if code.startswith("sm_")]
                of_machine = {**build, "cuda_compute_capabilities": codes}
                computed = "compiled" if software._has_code(build, (major, minor)) else "no"
                if software._has_code(of_machine, (major, minor)):
                    computed = "yes"
                assert word == computed, gpus_named


def test_no_gpu_is_refused_where_another_or_none_is_used_or_nothing_is_known(gpus):
    gpus("12.0", "8.9")
    software.check_gpu_code(WHEEL_2_20, 1)
    refused("CUDA_VISIBLE_DEVICES chooses another", software.check_gpu_code, WHEEL_2_20, 2)
    software.check_gpu_code(NEW_IMAGE, 2)
    software.check_gpu_code(WHEEL_2_20, 0)  # DEVICE=cpu
    software.check_gpu_code({"is_cuda_build": False}, 2)  # tensorflow-cpu
    gpus('Field "compute_cap" is not a valid field to query.')  # an old driver
    software.check_gpu_code(WHEEL_2_20, 1)


def test_programs_launchers_and_the_doctor_refuse_a_gpu_in_the_same_words(gpus, packages, tmp_path, monkeypatch):
    gpus("12.0")
    build_info = f"build_info = {WHEEL_2_15}"
    packages("tensorflow", "2.15.1", **{"python/platform/build_info.py": build_info})
    said = refused_start(STARTS["launcher"], tmp_path)
    assert "has no code for a GPU of compute capability 12.0" in said
    assert refused_start(STARTS["questions"], tmp_path) == said
    (tmp_path / "packages/tensorflow/__init__.py").write_text(
        "from types import SimpleNamespace as Names\n__version__ = '2.15.1'\n"
        f"sysconfig = Names(get_build_info=lambda: {WHEEL_2_15})\n"
        "config = Names(list_physical_devices=lambda _: [0])\n"
    )
    doctor = answer(sys.executable, "-m", "bert_tf.doctor", cwd=tmp_path)
    assert f"problem  TensorFlow: {said[len('error: ') :]}" in doctor.stdout
    monkeypatch.setenv("DEVICE", "cpu")
    assert "no code" not in answer(sys.executable, *STARTS["launcher"], cwd=tmp_path).stderr


# --- Horovod -------------------------------------------------------------------------------------


def test_horovod_that_was_built_for_another_tensorflow(packages, tmp_path, monkeypatch):
    metadata = json.dumps({"tensorflow": "2.15.1", "dummy": "none"})
    packages("horovod", "0.28.1", **{"metadata.json": metadata, "tensorflow/mpi_lib.so": ""})
    monkeypatch.syspath_prepend(tmp_path / "packages")
    monkeypatch.delitem(sys.modules, "horovod", raising=False)  # which another test may have imported
    for fitting in ("2.15.0+nv24.3", "2.15.1", None):
        software.check_horovod(fitting)
    said = "Horovod was built for TensorFlow 2.15.1, and TensorFlow 2.17.1 is installed: 'bash scripts/setup.sh' builds"
    refused(re.escape(said), software.check_horovod, "2.17.1")
    monkeypatch.setattr(software, "tensorflow_version", lambda: "2.17.1")
    refused(re.escape(said), launchers.Start(2, 0, {}).check_horovod)
    launchers.Start(1, 0, {}).check_horovod()  # one process works without
