"""With this folder on PYTHONPATH, Python lacks on Linux what it lacks on macOS.

Without /proc, /sys and /dev/shm, CPU affinity, and prctl in the C library; processes are spawned, 256 files may be open
at once, and the resource usage counts bytes. (mypy looks for names that only Linux has.) TensorFlow's C++ still sees
Linux.
"""

import ctypes
import errno
import functools
import os
import resource
import sys
import sysconfig
import types

del os.sched_getaffinity


def _refuse_absent(path) -> None:
    text = os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else ""
    if text.startswith(("/proc/", "/sys/", "/dev/shm")) or text in ("/proc", "/sys"):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def _on_open(event: str, arguments: tuple) -> None:
    if event in ("open", "os.listdir", "os.scandir"):
        _refuse_absent(arguments[0])


sys.addaudithook(_on_open)


def _without_the_absent(call, path, *arguments, **options):
    _refuse_absent(path)
    return call(path, *arguments, **options)


# No function of Python, which pathlib of Python 3.9 would make a method of.
os.stat = functools.partial(_without_the_absent, os.stat)


class _WithoutPrctl(ctypes.CDLL):
    def __getattr__(self, name):
        if name == "prctl":
            raise AttributeError("dlsym(RTLD_DEFAULT, prctl): symbol not found")
        return super().__getattr__(name)


ctypes.CDLL = _WithoutPrctl

_getrusage = resource.getrusage


def _in_bytes(who):
    usage = _getrusage(who)
    numbers = {name: getattr(usage, name) for name in dir(usage) if name.startswith("ru_")}
    return types.SimpleNamespace(**{**numbers, "ru_maxrss": usage.ru_maxrss << 10})


resource.getrusage = _in_bytes
resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

# By this name multiprocessing spawns; urllib then asks macOS for its proxies.
sysconfig.get_config_vars()  # which Python 3.12 computes only once, by the platform
sys.platform = "darwin"
sys.modules["_scproxy"] = types.SimpleNamespace(_get_proxy_settings=dict, _get_proxies=dict)
