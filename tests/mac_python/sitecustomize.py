"""With this folder on PYTHONPATH, Python lacks on Linux what it lacks on macOS.

Without the names of Linux, /proc, /sys and /dev/shm, and prctl in the C library; processes are spawned, 256 files may
be open at once, and the resource usage counts bytes. Only the Python side: TensorFlow's C++ still sees Linux.
"""

import ctypes
import errno
import fcntl
import functools
import mmap
import os
import resource
import select
import signal
import socket
import sys
import sysconfig
import time
import types

# What typeshed's stubs have for Linux alone. (Names that the standard library itself needs on Linux stay.)
_OF_LINUX = {
    os: "sched_ posix_fadvise posix_fallocate POSIX_FADV_ fdatasync O_TMPFILE O_PATH O_DIRECT O_NOATIME O_LARGEFILE "
    "memfd_create MFD_ eventfd EFD_ copy_file_range splice SPLICE_ getrandom GRND_ pipe2 pidfd_open getresuid "
    "getresgid setresuid setresgid P_PIDFD getxattr setxattr listxattr removexattr XATTR_ RTLD_DEEPBIND unshare setns "
    "CLONE_",
    signal: "pidfd_send_signal sigtimedwait sigwaitinfo SIGRT SIGPWR SIGPOLL SIGSTKFLT",
    fcntl: "F_SETPIPE_SZ F_GETPIPE_SZ F_NOTIFY F_SETLEASE F_GETLEASE F_SETSIG F_GETSIG F_ADD_SEALS F_GET_SEALS F_SEAL_ "
    "DN_",
    resource: "prlimit RLIMIT_OFILE RLIMIT_RTPRIO RLIMIT_RTTIME RLIMIT_SIGPENDING RLIMIT_NICE RLIMIT_MSGQUEUE",
    select: "epoll EPOLL",
    mmap: "MAP_POPULATE MAP_STACK MADV_HUGEPAGE MADV_NOHUGEPAGE MADV_DONTFORK MADV_DOFORK MADV_REMOVE MADV_HWPOISON",
    socket: "AF_NETLINK AF_VSOCK AF_PACKET AF_CAN AF_ALG SO_BINDTODEVICE SO_MARK TCP_KEEPIDLE TCP_USER_TIMEOUT "
    "SOCK_CLOEXEC SOCK_NONBLOCK",
    time: "CLOCK_BOOTTIME CLOCK_TAI pthread_getcpuclockid",
}
_ABSENT = ("/proc", "/sys", "/dev/shm")

for _module, _beginnings in _OF_LINUX.items():
    for _name in list(vars(_module)):
        if _name.startswith(tuple(_beginnings.split())):
            delattr(_module, _name)


def _is_absent(path) -> bool:
    if isinstance(path, os.PathLike):
        path = os.fspath(path)
    if isinstance(path, bytes):
        path = os.fsdecode(path)
    return isinstance(path, str) and any(path == root or path.startswith(f"{root}/") for root in _ABSENT)


def _on_open(event: str, arguments: tuple) -> None:
    if event in ("open", "os.listdir", "os.scandir") and _is_absent(arguments[0]):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), arguments[0])


sys.addaudithook(_on_open)


def _without_the_absent(call, path, *arguments, **options):
    if _is_absent(path):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
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
    return types.SimpleNamespace(
        **{name: getattr(usage, name) for name in dir(usage) if name.startswith("ru_")}
        | {"ru_maxrss": usage.ru_maxrss << 10}
    )


resource.getrusage = _in_bytes
resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

# By this name multiprocessing spawns; urllib then asks macOS for its proxies.
sysconfig.get_config_vars()  # which Python 3.12 computes only once, by the platform
sys.platform = "darwin"
sys.modules["_scproxy"] = types.SimpleNamespace(_get_proxy_settings=dict, _get_proxies=dict)
