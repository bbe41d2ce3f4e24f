"""The custom call's target beside a driver of our own, and what the search for kernels refuses."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bert_tf.base.tensorflow import tf
from bert_tf.model.kernels import launching
from bert_tf.model.kernels.compilation import KernelsUnavailable
from bert_tf.model.kernels.requirements import LAUNCHER
from tests.compiled import compile_for_test
from tests.processes import answer

DRIVER = Path(__file__).with_name("driver.cpp")
# A process of its own, because a library is found by its name only where the loader looked for it at the start.
BEGIN = """if True:
    import ctypes, sys
    launcher = ctypes.CDLL(sys.argv[1])
    launcher.load_driver.restype = ctypes.c_char_p
    missing = launcher.load_driver().decode()
    if missing: sys.exit(f"missing: {missing}")
    driver = ctypes.CDLL("libcuda.so.1")
    driver.take_asked.restype = driver.call.restype = ctypes.c_char_p
    def asked(): return driver.take_asked().decode().splitlines()
    def call(config, stream=5): return driver.call(ctypes.c_size_t(stream), config.encode()).decode()
    address = lambda function: ctypes.cast(function, ctypes.c_void_p)
    def register():
        launcher.register_target(address(driver.registry), address(driver.add), b"name", None, b"CUDA")
    def add(image, name, num_warps, shared_bytes):
        return launcher.add_kernel(image, ctypes.c_size_t(len(image)), name, num_warps, shared_bytes)
"""


@pytest.fixture(scope="module")
def launcher(tmp_path_factory):
    return compile_for_test(LAUNCHER, tmp_path_factory.mktemp("launcher") / "launch.so")


def run(launcher, folder, code=""):
    """What a process prints in which the folder's driver is the machine's; its last error."""
    done = answer(sys.executable, "-c", BEGIN + code, launcher, LD_LIBRARY_PATH=str(folder))
    return done.stdout.splitlines(), done.stderr.strip().splitlines()[-1:]


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    folder = tmp_path_factory.mktemp("driver")
    compile_for_test(DRIVER, folder / "libcuda.so.1")
    return folder


def test_a_machine_without_a_driver_or_whose_driver_lacks_a_function(launcher, tmp_path):
    library, source = tmp_path / "libcuda.so.1", tmp_path / "driver.cpp"
    library.write_text("not a library, but the first of this name")
    assert run(launcher, tmp_path) == ([], ["missing: libcuda.so.1"])
    source.write_text("#define WITHOUT_LAUNCH\n" + DRIVER.read_text())
    compile_for_test(source, library)
    assert run(launcher, tmp_path) == ([], ["missing: cuLaunchKernel"])


def test_launches(launcher, driver):
    """A kernel is loaded once for each GPU, and launched as XLA's program says."""
    code = """
    register()
    print(add(b"code 0", b"first", 4, 1024), add(b"code 1", b"second", 8, 0))
    print(call("1 2 3 4 2"), call("1 5 6 7 2"), call("1 2 3 4 2", stream=6))
    print("\\n".join(asked()))
    """
    begin, end = ["cuStreamGetCtx", "cuCtxPushCurrent"], ["cuCtxPopCurrent"]
    load = ["cuModuleLoadData code 1", "cuModuleGetFunction second", "cuFuncSetAttribute 8 0"]
    launch = "cuLaunchKernel {}, 256 threads, 0 bytes, stream {}, buffers 11 12, scratch 0 0"
    expected = ["0 1", "fine fine fine", "register name CUDA"]
    expected += [*begin, *load, launch.format("2 3 4", 5), *end]
    expected += [*begin, launch.format("5 6 7", 5), *end]
    expected += [*begin, *load, launch.format("2 3 4", 6), *end]
    assert run(launcher, driver, code) == (expected, [])


def test_wrong_calls_fail_with_a_message(launcher, driver):
    """And the driver is asked nothing."""
    configs = ["1 2 3 4 2", "-1 2 3 4 2", "0 2 3 4", "nonsense", ""]
    code = f"""
    register()
    add(b"code", b"kernel", 4, 0)
    for config in {configs}: print(call(config))
    print(len(asked()))
    """
    expected = ["unknown kernel"] * 2 + [f"wrong backend_config: {config}" for config in configs[2:]]
    assert run(launcher, driver, code) == ([*expected, "1"], [])


def test_what_the_driver_refuses_is_said_and_tried_again(launcher, driver):
    """And the GPU's context is given back wherever it was taken."""
    of_context, of_kernel = ["cuStreamGetCtx", "cuCtxPushCurrent"], ["cuModuleLoadData", "cuModuleGetFunction"]
    of_kernel += ["cuFuncSetAttribute", "cuLaunchKernel"]
    code = f"""
    register()
    for number, function in enumerate({of_context + of_kernel}):
        add(b"code", b"kernel", 4, 0)
        driver.fail(function.encode())
        print(call(f"{{number}} 1 1 1 2"), asked().count("cuCtxPopCurrent"))
        driver.fail(b"")
        print(call(f"{{number}} 1 1 1 2"), len(asked()) > 3)
    """
    expected = [*["driver says 7 0", "fine True"] * 2, *["kernel: driver says 7 1", "fine True"] * 4]
    assert run(launcher, driver, code) == (expected, [])


# --- In TensorFlow -------------------------------------------------------------------------------


def test_a_wrong_call_is_an_error_of_the_compiled_program(monkeypatch):
    """The target for GPUs, registered for the CPU under another name."""
    monkeypatch.setattr(launching, "TARGET", "bert_tf_kernel_on_a_cpu")
    try:
        launching.register.__wrapped__("Host")
    except KernelsUnavailable as reason:
        pytest.skip(str(reason))
    run = tf.function(lambda x: launching.call(10**6, (1, 1, 1), [x], [([4], tf.float32)]), jit_compile=True)
    with pytest.raises(tf.errors.OpError, match="unknown kernel"):
        run(tf.zeros([4]))


def test_without_a_gpu_or_the_compiled_code(monkeypatch):
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: [])
    with pytest.raises(KernelsUnavailable, match="^there is no GPU$"):
        launching.compute_capability()
    monkeypatch.setattr(launching, "load_library", lambda _: None)
    said = r"^the project's C\+\+ is not compiled \(python -m bert_tf.base.compiled\)$"
    with pytest.raises(KernelsUnavailable, match=said):
        launching.launcher.__wrapped__()
