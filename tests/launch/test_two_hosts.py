"""Two ranks on two hosts: network namespaces of this machine, each with a name, an address and an sshd of its own.

BERT_TF_TWO_HOSTS=1 runs it: it makes network namespaces, takes minutes, and holds how long ranks wait for a host that
is gone. Needs root, `ip`, `unshare` and an sshd; mpirun is tried where Horovod has MPI.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bert_tf.base.machine import software
from tests.jobs import events
from tests.launch.test_ranks import processes_of
from tests.pretraining_data import TINY, write_dataset
from tests.training.test_training import ROOT, command, wait_for, weights

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.environ.get("BERT_TF_TWO_HOSTS") != "1", reason="BERT_TF_TWO_HOSTS=1 runs it"),
]

PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
TOOLS = {name: shutil.which(name, path=PATH) for name in ("ip", "ssh", "ssh-keygen", "sshd", "unshare")}
ADDRESSES = ("198.18.0.1", "198.18.0.2")
NUM_UPDATES = 100
LAUNCH = """
import os, pathlib, sys
from bert_tf.launch.job import LaunchEnvironment, run
sys.exit(run("training", sys.argv[4:], int(sys.argv[1]), pathlib.Path(sys.argv[2]), LaunchEnvironment(os.environ)))
"""
# What the documents promise: all ranks have ended.
LIMIT_SECS = 60
REASONS = {
    "horovodrun": "another rank has ended or does not answer any more",
    "mpirun": "ORTE has lost communication with a remote daemon",
}
# As ssh is used without a question: by a key, and with the other's in known_hosts.
SSH = """#!/bin/sh
exec {ssh} -i {key} -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR "$@"
"""
SSHD = """
HostKey {key}
AuthorizedKeysFile {key}.pub
PidFile none
PermitRootLogin yes
StrictModes no
UsePAM no
"""


class Hosts:
    def __init__(self, folder):
        self.names = [f"bert{os.getpid()}{letter}" for letter in "ab"]
        self.folder = folder
        self._servers = []

    def ip(self, *arguments):
        subprocess.run([TOOLS["ip"], *arguments], check=True, capture_output=True)

    def start(self):
        for name in self.names:
            self.ip("netns", "add", name)
        first, second = self.names
        self.ip("link", "add", "eth0", "netns", first, "type", "veth", "peer", "name", "eth0", "netns", second)
        key = self.folder / "key"
        subprocess.run([TOOLS["ssh-keygen"], "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
        (self.folder / "sshd_config").write_text(SSHD.format(key=key))
        (self.folder / "ssh").write_text(SSH.format(ssh=TOOLS["ssh"], key=key))
        (self.folder / "ssh").chmod(0o755)
        names = [f"{address} {name}\n" for address, name in zip(ADDRESSES, self.names)]
        (self.folder / "hosts").write_text("".join(["127.0.0.1 localhost\n", *names]))
        Path("/run/sshd").mkdir(exist_ok=True)
        for number, address in enumerate(ADDRESSES):
            self.ip("-n", self.names[number], "address", "add", f"{address}/30", "dev", "eth0")
            for device in ("lo", "eth0"):
                self.ip("-n", self.names[number], "link", "set", device, "up")
            self._servers.append(self.on(number, [TOOLS["sshd"], "-D", "-e", "-f", self.folder / "sshd_config"]))

    def on(self, number, arguments, **options):
        """A process on a host, which has the host's name."""
        name = self.names[number]
        become = f"hostname {name} && mount --bind {self.folder / 'hosts'} /etc/hosts"
        rename = [TOOLS["unshare"], "--uts", "--mount", "sh", "-c", f'{become} && exec "$@"', "sh"]
        return subprocess.Popen([TOOLS["ip"], "netns", "exec", name, *rename, *map(str, arguments)], **options)

    def link(self, state):
        self.ip("-n", self.names[0], "link", "set", "eth0", state)

    def stop(self):
        for server in self._servers:
            server.kill()
            server.wait()
        for name in self.names:
            subprocess.run([TOOLS["ip"], "netns", "delete", name], capture_output=True)

    def launch(self, launcher, model_dir, dataset):
        """The program as the launchers start it on the first host, a rank on each."""
        arguments = command(dataset, model_dir, num_train_steps=NUM_UPDATES, save_checkpoint_steps=10)
        environment = {
            **os.environ,
            "CUDA_VISIBLE_DEVICES": "",
            "LAUNCHER": launcher,
            "HOSTS": ",".join(f"{name}:1" for name in self.names),
            "OMP_NUM_THREADS": "1",
            "TF_NUM_INTRAOP_THREADS": "1",
            "TF_NUM_INTEROP_THREADS": "1",
            "PATH": f"{self.folder}:{PATH}",
            "PYTHONPATH": str(ROOT),
        }
        logs = model_dir / "logs" / str(time.time_ns())
        return self.on(
            0,
            [sys.executable, "-c", LAUNCH, "2", logs, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    pytest.importorskip("horovod.tensorflow")
    if os.geteuid() or not all(TOOLS.values()):
        pytest.skip(f"needs root and {', '.join(TOOLS)}")
    hosts = Hosts(tmp_path_factory.mktemp("hosts"))
    try:
        hosts.start()
        yield hosts
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces: {error.stderr}")
    finally:
        hosts.stop()


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = write_dataset(tmp_path_factory.mktemp("records"))
    (folder / "bert_config.json").write_text(TINY.to_json())
    return folder


@pytest.mark.parametrize("launcher", ["horovodrun", "mpirun"])
def test_a_run_on_two_hosts_whose_link_is_cut(hosts, dataset, tmp_path, launcher):
    """All ends in time with a reason; started again, it goes on to the bits of a run that nobody disturbed."""
    if launcher == "mpirun" and not (software.horovod_has_mpi() and shutil.which("mpirun")):
        pytest.skip("Horovod without MPI")
    undisturbed, cut = tmp_path / "undisturbed", tmp_path / "cut"
    process = hosts.launch(launcher, undisturbed, dataset)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    process = hosts.launch(launcher, cut, dataset)
    wait_for(cut / "checkpoints" / "ckpt-00000010", process)
    hosts.link("down")
    started = time.monotonic()
    try:
        output, _ = process.communicate(timeout=LIMIT_SECS)
        assert process.returncode not in (0, 75) and REASONS[launcher] in output, output
        while processes_of(cut):
            assert time.monotonic() - started < LIMIT_SECS, processes_of(cut)
            time.sleep(0.5)
    finally:
        hosts.link("up")
    process = hosts.launch(launcher, cut, dataset)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0 and "going on from" in output, output
    assert weights(cut, NUM_UPDATES) == weights(undisturbed, NUM_UPDATES)
    losses = [{record["update"]: record["total_loss"] for record in events(run, "train")} for run in (cut, undisturbed)]
    assert losses[0] == losses[1]
