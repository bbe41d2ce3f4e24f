"""scripts/docker: docker's exact commands, and what is refused; the Dockerfiles' instructions."""

import os
import pty
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from bert_tf.prepare.layout import Layout
from bert_tf.programs.settings_page import TABLES
from bert_tf.settings.declaration import with_variable
from tests.refusals import refusal
from tests.stand_ins import write_program

CHECKOUT = Path(__file__).resolve().parents[2]
SHARED = "--net=host --shm-size=1g --ulimit stack=67108864"
LIMITS = f"--ipc=host --ulimit memlock=-1 --user {os.getuid()}:{os.getgid()}"
RUN = f"{SHARED} {LIMITS} -v CHECKOUT:/workspace/bert -v"
VARIABLES = {"NVIDIA_VISIBLE_DEVICES", "http_proxy", "https_proxy", "no_proxy", "SHARDS"}
VARIABLES |= {each.variable for classes in TABLES.values() for each in with_variable(*classes)}


class Machine:
    """A PATH on which docker and nvidia-smi are what a test wants; docker writes its arguments to a file."""

    def __init__(self, folder: Path):
        self.folder, self.log, self.bin = folder, folder / "log", folder / "bin"
        self.bin.mkdir()
        for tool in ("bash", "dirname", "readlink", "sed", "id", "mkdir", "grep"):
            (self.bin / tool).symlink_to(str(shutil.which(tool)))

    def docker(self, image: str = "exit 0", info: str = "[name=seccomp]", version: str = "Docker 20.10") -> None:
        log = f'printf "%s\\n" "$@" >"{self.log}"; exit 7'
        answers = f'--version) echo "{version}" ;;\n info) echo "{info}" ;;\n image) {image} ;;'
        text = f"case $1 in\n {answers}\n *) {log} ;;\nesac"
        write_program(self.bin / "docker", text)

    # It takes its time for each.
    def nvidia_smi(self, text: str = "echo 'GPU 0: H100 (UUID: GPU-1)'; sleep 0.1; echo 'GPU 1: ...'") -> None:
        write_program(self.bin / "nvidia-smi", text)

    def start(self, script: str, *arguments: str, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, **environment: str):
        environ = {name: value for name, value in os.environ.items() if name not in VARIABLES}
        return subprocess.run(
            ["bash", str(CHECKOUT / "scripts/docker" / script), *arguments],
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env={**environ, "PATH": str(self.bin), **environment},
        )

    def printed(self, script: str, *arguments: str, **environment: str) -> str:
        """The command of a dry run, which needs no docker."""
        done = self.start(script, *arguments, DRY_RUN="1", **environment)
        assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 1)
        results = os.path.realpath(CHECKOUT / "results")  # in an image a link to /results
        return done.stdout.strip().replace(f"{results}:", "RESULTS:").replace(f"-v {CHECKOUT}:", "-v CHECKOUT:")


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


@pytest.mark.parametrize(
    "environment, typed, gpus, rest",
    [
        ("", "", "--gpus all ", "RESULTS:/results"),
        ("NVIDIA_VISIBLE_DEVICES=0,1", "bash run_squad.sh 10", "--gpus '\"device=0,1\"' ", "RESULTS:/results"),
        ("NVIDIA_VISIBLE_DEVICES=none", "true", "", "RESULTS:/results"),
        (
            "RESULTS_DIR=/runs/a DATASET=sample http_proxy=http://proxy:3128",
            "bash",
            "--gpus all ",
            "/runs/a:/results -e RESULTS_DIR=/results -e DATASET -e http_proxy",
        ),
        (
            "BERT_PREP_WORKING_DIR=/usr DATA_DIR=/etc/../usr/bin RESULTS_DIR=/r",
            "bash",
            "--gpus all ",
            f"/r:/results -v /usr:/usr -v {os.path.realpath('/usr/bin')}:/usr/bin"
            " -e RESULTS_DIR=/results -e BERT_PREP_WORKING_DIR=/usr -e DATA_DIR=/usr/bin",
        ),
    ],
)
def test_launch_prints_the_command_with_gpus(machine, environment, typed, gpus, rest):
    machine.nvidia_smi()
    printed = machine.printed("launch.sh", *typed.split(), **dict(word.split("=", 1) for word in environment.split()))
    assert printed == f"docker run --rm {gpus}{RUN} {rest} -w /workspace/bert bert {typed or 'bash'}"


def test_without_gpus_none_are_asked_for(machine):
    expected = f"docker run --rm {RUN} RESULTS:/results -w /workspace/bert bert bash"
    assert machine.printed("launch.sh") == expected
    machine.nvidia_smi("echo 'NVIDIA-SMI has failed'; exit 9")  # a driver without a GPU
    assert machine.printed("launch.sh", NVIDIA_VISIBLE_DEVICES="all") == expected
    printed = machine.printed("launch.sh", "echo", "a b", RESULTS_DIR="/my runs/a")
    assert " -v '/my runs/a:/results' " in printed and printed.endswith(" bert echo 'a b'")


@pytest.mark.parametrize("info, options", [("[name=seccomp]", LIMITS.split()), ("[name=seccomp name=rootless]", [])])
def test_docker_gets_what_was_printed_and_its_exit_code_is_ours(machine, tmp_path, info, options):
    """An engine without root's rights gets no option that it refuses."""
    machine.docker(info=info)
    machine.nvidia_smi()
    environment = {"NVIDIA_VISIBLE_DEVICES": "0,1", "RESULTS_DIR": str(tmp_path / "new/results")}
    done = machine.start("launch.sh", "echo", "a  b", "$HOME", **environment)
    assert done.returncode == 7, done.stderr
    words = machine.log.read_text().splitlines()
    given = ["run", "--rm", "--gpus", '"device=0,1"', *SHARED.split(), *options, "-v", f"{CHECKOUT}:/workspace/bert"]
    assert words[: len(given)] == given and words[-4:] == ["bert", "echo", "a  b", "$HOME"]
    assert (tmp_path / "new/results").is_dir()  # docker would make it as root


def test_the_folder_of_a_checkpoint_or_vocabulary_is_mounted(machine, tmp_path):
    """A tokenizer.json beside a vocab.txt counts, inside as outside."""
    (tmp_path / "vocab.txt").touch()
    printed = machine.printed("launch.sh", VOCAB_FILE=str(tmp_path / "vocab.txt"), DO_LOWER_CASE="0")
    assert f" -v {tmp_path}:{tmp_path} -e VOCAB_FILE={tmp_path}/vocab.txt -e DO_LOWER_CASE " in printed
    (tmp_path / "bert_model.ckpt.index").touch()
    for path in (tmp_path / "bert_model.ckpt", tmp_path):
        printed = machine.printed("launch.sh", INIT_CHECKPOINT=str(path))
        assert f" -v {tmp_path}:{tmp_path} -e INIT_CHECKPOINT={path} " in printed
    # In the hub's cache the files are links to a folder beside the snapshots.
    snapshot = tmp_path / "models--a--b/snapshots/c0ffee"
    snapshot.mkdir(parents=True)
    printed = machine.printed("launch.sh", INIT_CHECKPOINT=str(snapshot))
    assert f" -v {tmp_path}/models--a--b:{tmp_path}/models--a--b -e INIT_CHECKPOINT={snapshot} " in printed


def test_a_terminal_is_handed_on(machine):
    ours, theirs = pty.openpty()
    machine.start("launch.sh", DRY_RUN="1", stdin=theirs, stdout=theirs)
    assert os.read(ours, 60).startswith(b"docker run --rm -it --net=host")
    assert " -it " not in machine.start("launch.sh", DRY_RUN="1", stdin=theirs).stdout  # its output is a pipe
    os.close(ours)
    os.close(theirs)


@pytest.mark.parametrize("arguments", ["", " -f Dockerfile.cpu --build-arg SETUP=--test"])
@pytest.mark.parametrize("proxy, passed_on", [({}, ""), ({"https_proxy": "http://p:1"}, " --build-arg https_proxy")])
def test_build_prints_the_command(machine, arguments, proxy, passed_on):
    expected = f"docker build --network=host{passed_on} -t bert -f Dockerfile{arguments} ."
    assert machine.printed("build.sh", *arguments.split(), **proxy) == expected


@pytest.mark.parametrize("text, is_dry", [("TRUE", True), ("Yes", True), ("False", False), ("NO", False), ("", False)])
def test_a_switch_is_spelled_as_for_the_launchers(machine, text, is_dry):
    done = machine.start("build.sh", DRY_RUN=text)
    said = "docker build" if is_dry else "error: there is no docker"
    assert (done.stdout if is_dry else done.stderr).startswith(said)


@pytest.mark.parametrize(
    "script, image, said",
    [
        ("build.sh", None, "there is no docker on PATH.*setup.sh"),
        ("launch.sh", None, "there is no docker on PATH.*setup.sh"),
        ("launch.sh", "echo 'No such image: bert' >&2; exit 1", "no image 'bert' yet: bash scripts/docker/build.sh"),
        ("launch.sh", "echo 'Cannot connect' >&2; exit 1", "docker does not answer: Cannot connect"),
        ("launch.sh", "exit 0", "the results folder"),
    ],
)
def test_what_is_missing_is_said(machine, script, image, said):
    if image:
        machine.docker(image)
    (machine.folder / "file").touch()
    done = machine.start(script, RESULTS_DIR="file/results")
    assert done.returncode == 2 and re.search(f"error: .*{said}", done.stderr) and not machine.log.exists()


def test_podman_under_dockers_name_is_not_started(machine):
    machine.docker(version="podman version 4.3.1")
    assert "docker here is Podman" in refusal(machine.start("launch.sh", "true")) and not machine.log.exists()


@pytest.mark.parametrize(
    "name, value, message",
    [
        ("DRY_RUN", "perhaps", "must be 1, 0, true, false, yes or no"),
        ("NVIDIA_VISIBLE_DEVICES", "0, 1", "separated by commas without blanks"),
        ("NVIDIA_VISIBLE_DEVICES", "0", "nvidia-smi lists no GPU on this machine"),
        ("HOSTS", "a:1,b:1", "a container starts no ranks on other machines"),
        ("DATA_DIR", "nowhere", "there is no such file or folder"),
        ("RESULTS_DIR", "runs/12:30", "docker mounts no folder with a colon in its path"),
        ("INIT_CHECKPOINT", "/nowhere/bert_model.ckpt", "there is no such file or folder"),
    ],
)
def test_launch_refuses(machine, name, value, message):
    line = refusal(machine.start("launch.sh", **{"DRY_RUN": "1", name: value}))
    assert line.startswith(f"error: {name}=") and message in line


# --- The Dockerfiles -----------------------------------------------------------------------------


def instructions(name: str) -> list[str]:
    text = re.sub(r"^#.*\n", "", (CHECKOUT / name).read_text(), flags=re.MULTILINE)
    return [" ".join(part.split()) for part in re.sub(r"\\\n", " ", text).splitlines() if part.strip()]


@pytest.mark.parametrize(
    "name, base",
    [("Dockerfile", "nvcr.io/nvidia/tensorflow:25.02-tf2-py3"), ("Dockerfile.cpu", "python:3.11-slim-bookworm")],
)
def test_dockerfile(name, base):
    steps = instructions(name)
    assert steps[0] == f"ARG FROM_IMAGE_NAME={base}"
    assert "FROM ${FROM_IMAGE_NAME}" in steps and "WORKDIR /workspace/bert" in steps
    # All packages come from setup.sh, and an image that cannot train on several ranks is not made.
    setup = next(step for step in steps if "setup.sh" in step and step.startswith("RUN"))
    assert re.search(r"bash scripts/setup\.sh .*&& \S*python -c 'import horovod\.tensorflow'", setup)
    assert not any("pip install" in step for step in steps)
    # Compiled where there is a compiler, after the source has come.
    [compiling] = [number for number, step in enumerate(steps) if step.endswith("python -m bert_tf.base.compiled")]
    assert steps[compiling - 1] in ("COPY . .", "COPY bert_tf bert_tf")
    for step in steps:
        if step.startswith("COPY") and "--from" not in step:
            *sources, _ = [word for word in step.split()[1:] if not word.startswith("--")]
            assert all(list(CHECKOUT.glob(source)) for source in sources if source != "."), step
    if name == "Dockerfile.cpu":
        assert [step for step in steps if step.startswith("USER")] == ["USER 1000:1000"]
        final = steps[steps.index("FROM ${FROM_IMAGE_NAME}") :]
        assert not any("apt-get" in step for step in final)  # the compiler is in the other stage


def test_git_ignores_what_the_preparation_writes_and_no_image_gets_what_git_ignores():
    entries = (CHECKOUT / ".gitignore").read_text().split()
    folders = set(vars(Layout(CHECKOUT)).values()) - {CHECKOUT}
    assert len(folders) > 5 and {f"/data/{folder.name}/" for folder in folders} <= set(entries)
    ignored = set((CHECKOUT / ".dockerignore").read_text().split("\n"))
    for name in (".git", *(entry.strip("/") for entry in entries)):
        assert ignored & {name, f"**/{name}"}, f".dockerignore lacks {name}"
