"""The files that take long come first: where several processes share the tests, file by file, none is left alone."""

from __future__ import annotations

# In the order of their processor time.
EXPENSIVE = (
    *("training", "train_step", "end_to_end", "distributed", "model_parity", "finetuning", "replay", "bertprep"),
    *("measuring_benchmarks", "long_runs", "convergence", "packed_update", "host_and_device", "launch", "model"),
    *("optimization", "glue_run", "connect", "bad_input", "halving", "device_kernels", "quickstart", "doctor"),
    *("bad_preparation_input", "chunk_ids", "preparation_benchmark", "kill_preparation", "dask", "docs_python"),
)
_RANKS = {f"test_{name}.py": rank for rank, name in enumerate(EXPENSIVE)}


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: _RANKS.get(item.path.name, len(_RANKS)))
