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

import pytest

from bert_tf.base.machine import software
from tests.jobs import events
from tests.launch.helpers import START_RANKS, processes_of
from tests.pretraining_data import write_dataset
from tests.processes import ROOT, wait_for
from tests.training.test_training import command, weights

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.environ.get("BERT_TF_TWO_HOSTS") != "1", reason="BERT_TF_TWO_HOSTS=1 runs it"),
]

PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
TOOLS = ("ip", "ssh", "ssh-keygen", "sshd", "unshare")
NUM_UPDATES = 100
# What the documents promise: all ranks have ended.
LIMIT_SECS = 60
REASONS = {"horovodrun": "another rank has ended", "mpirun": "ORTE has lost communication with a remote daemon"}
# Two namespaces $A and $B with a link between them, what sshd reads, and an ssh that is used without a question: by a
# key, and with the other's in known_hosts.
SET_UP = r"""
ip netns add $A
ip netns add $B
ip link add eth0 netns $A type veth peer name eth0 netns $B
ip -n $A address add 198.18.0.1/30 dev eth0
ip -n $B address add 198.18.0.2/30 dev eth0
for host in $A $B; do for device in lo eth0; do ip -n $host link set $device up; done; done
printf '127.0.0.1 localhost\n198.18.0.1 %s\n198.18.0.2 %s\n' $A $B >hosts
mkdir -p /run/sshd
ssh-keygen -q -t ed25519 -N '' -f key
printf '%s\n' "HostKey $PWD/key" "AuthorizedKeysFile $PWD/key.pub" 'PidFile none' 'PermitRootLogin yes' \
  'StrictModes no' 'UsePAM no' >sshd_config
options='-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR'
printf '#!/bin/sh\nexec %s -i %s %s "$@"\n' "$(command -v ssh)" "$PWD/key" "$options" >ssh
chmod +x ssh
"""


class Hosts:
    def __init__(self, folder):
        self.names = [f"bert{os.getpid()}{letter}" for letter in "ab"]
        self.folder = folder

    def sh(self, script):
        variables = {"PATH": PATH, "A": self.names[0], "B": self.names[1]}
        return subprocess.run(["sh", "-ec", script], cwd=self.folder, env=variables, capture_output=True, text=True)

    def on(self, number, arguments, **options):
        """A process on a host, which has the host's name."""
        name = self.names[number]
        become = f"hostname {name} && mount --bind {self.folder / 'hosts'} /etc/hosts"
        rename = ["unshare", "--uts", "--mount", "sh", "-c", f'{become} && exec "$@"', "sh"]
        environ = {"PATH": PATH, **options.pop("env", {})}
        command = ["ip", "netns", "exec", name, *rename, *map(str, arguments)]
        return subprocess.Popen(command, env={**os.environ, **environ}, **options)

    def launch(self, launcher, model_dir, dataset):
        """The program as the launchers start it on the first host, a rank on each."""
        arguments = command(dataset, model_dir, num_train_steps=NUM_UPDATES, save_checkpoint_steps=10)
        environ = dict.fromkeys(("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"), "1")
        environ.update(LAUNCHER=launcher, HOSTS=",".join(self.names), CUDA_VISIBLE_DEVICES="")
        environ.update(PATH=f"{self.folder}:{PATH}", PYTHONPATH=str(ROOT))
        logs = model_dir / "logs" / str(time.time_ns())
        streams = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return self.on(0, [sys.executable, "-c", START_RANKS, 2, logs, *arguments[1:]], env=environ, **streams)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    pytest.importorskip("horovod.tensorflow")
    if os.geteuid() or not all(shutil.which(tool, path=PATH) for tool in TOOLS):
        pytest.skip(f"needs root and {', '.join(TOOLS)}")
    hosts, servers = Hosts(tmp_path_factory.mktemp("hosts")), []
    made = hosts.sh(SET_UP)
    if not made.returncode:
        sshd = [shutil.which("sshd", path=PATH), "-D", "-e", "-f", hosts.folder / "sshd_config"]
        servers = [hosts.on(number, sshd) for number in range(2)]
        yield hosts
    for server in servers:
        server.kill()
        server.wait()
    hosts.sh("ip netns delete $A; ip netns delete $B")
    if made.returncode:
        pytest.skip(f"no network namespaces: {made.stderr}")


@pytest.mark.parametrize("launcher", ["horovodrun", "mpirun"])
def test_a_run_on_two_hosts_whose_link_is_cut(hosts, tmp_path, launcher):
    """All ends in time with a reason; started again, it goes on to the bits of a run that nobody disturbed."""
    if launcher == "mpirun" and not (software.horovod_has_mpi() and shutil.which("mpirun")):
        pytest.skip("Horovod without MPI")
    dataset, undisturbed, cut = write_dataset(tmp_path / "records"), tmp_path / "undisturbed", tmp_path / "cut"
    process = hosts.launch(launcher, undisturbed, dataset)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    process = hosts.launch(launcher, cut, dataset)
    wait_for((cut / "checkpoints/ckpt-00000010").exists, process)
    hosts.sh("ip -n $A link set eth0 down")
    started = time.monotonic()
    try:
        output, _ = process.communicate(timeout=LIMIT_SECS)
        assert process.returncode not in (0, 75) and REASONS[launcher] in output, output
        while processes_of(cut):
            assert time.monotonic() - started < LIMIT_SECS, processes_of(cut)
            time.sleep(0.5)
    finally:
        hosts.sh("ip -n $A link set eth0 up")
    process = hosts.launch(launcher, cut, dataset)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0 and "going on from" in output, output
    assert weights(cut, NUM_UPDATES) == weights(undisturbed, NUM_UPDATES)
    losses = [{record["update"]: record["total_loss"] for record in events(run, "train")} for run in (cut, undisturbed)]
    assert losses[0] == losses[1]
