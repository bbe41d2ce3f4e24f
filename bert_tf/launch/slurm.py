"""How ranks that srun starts find each other without MPI: by Horovod's Gloo and a server in the launcher."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class _Server(ThreadingHTTPServer):
    # All ranks connect at once, and Gloo gives up after 30 s. Python's default is 5; the kernel's limit is somaxconn.
    request_queue_size = 4096


def serve_addresses() -> int:
    """Starts a rendezvous server for Horovod's Gloo, where ranks started by srun publish and read their addresses.

    It answers like the server in Horovod's launcher: PUT and GET of /<scope>/<key>, and 404 for a key not yet put. It
    does not need Horovod, which may be missing outside of the container in which the ranks run. It serves as long as
    this process lives. Returns the port, which is open on all interfaces of the machine.
    """
    values: dict[str, bytes] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            values[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
            self._answer(200)

        def do_GET(self) -> None:
            self._answer(200 if self.path in values else 404, values.get(self.path, b""))

        def do_DELETE(self) -> None:
            self._answer(200)  # but keeps the address: a slower rank may still need it

        def _answer(self, status: int, body: bytes = b"") -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = _Server(("", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address[1]


def slurm_place(environ: Mapping[str, str]) -> dict[str, str]:
    """Horovod's variables for the Slurm task that `environ` describes; consecutive ranks share a node."""
    counts = re.findall(r"(\d+)(?:\(x(\d+)\))?", environ["SLURM_STEP_TASKS_PER_NODE"])  # such as 2(x3),1
    tasks_per_node = [int(tasks) for tasks, times in counts for _ in range(int(times or 1))]
    node, local_rank = int(environ["SLURM_NODEID"]), int(environ["SLURM_LOCALID"])
    # The nodes that have a task with this local rank.
    peer_nodes = [number for number, tasks in enumerate(tasks_per_node) if tasks > local_rank]
    server = environ["SLURM_LAUNCH_NODE_IPADDR"]
    return {
        "HOROVOD_RANK": environ["SLURM_PROCID"],
        "HOROVOD_SIZE": str(sum(tasks_per_node)),
        "HOROVOD_LOCAL_RANK": str(local_rank),
        "HOROVOD_LOCAL_SIZE": str(tasks_per_node[node]),
        "HOROVOD_CROSS_RANK": str(peer_nodes.index(node)),
        "HOROVOD_CROSS_SIZE": str(len(peer_nodes)),
        "HOROVOD_HOSTNAME": environ["SLURMD_NODENAME"],
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": server,
        "HOROVOD_GLOO_IFACE": environ.get("HOROVOD_GLOO_IFACE") or interface_towards(server),
    }


def interface_towards(address: str) -> str:
    """The network interface that leads to an IPv4 address, such as eth0; empty if unknown.

    Without it Gloo would publish the address that the host's name resolves to, which on many hosts is loopback.
    """
    import psutil  # comes with Horovod

    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))  # sends nothing
        for name, addresses in psutil.net_if_addrs().items():
            if probe.getsockname()[0] in (entry.address for entry in addresses):
                return name
    return ""
