"""The files that take long come first: where several processes share the tests, file by file, none is left alone."""

from __future__ import annotations

# In the order of their processor time.
EXPENSIVE = (
    *("training", "end_to_end", "train_step", "measuring_benchmarks", "bertprep", "long_runs", "model", "launch"),
    *("distributed", "convergence", "finetuning", "replay", "optimization", "bad_input", "model_parity", "glue_run"),
    *("host_and_device", "packed_update", "quickstart", "doctor", "bad_preparation_input", "connect", "chunk_ids"),
    *("preparation_benchmark", "kill_preparation", "dask", "docs_python", "device_kernels"),
)
_RANKS = {f"test_{name}.py": rank for rank, name in enumerate(EXPENSIVE)}


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: _RANKS.get(item.path.name, len(_RANKS)))
