"""The files that take long come first: where several processes share the tests, file by file, none is left alone."""

from __future__ import annotations

# In the order of their processor time.
EXPENSIVE = (
    *(
        "training",
        "end_to_end",
        "train_step",
        "distributed",
        "launch",
        "model_parity",
        "finetuning",
        "measuring_benchmarks",
    ),
    *("packed_update", "model", "optimization", "glue_run", "replay", "convergence", "host_and_device", "doctor"),
    *("quickstart", "connect", "bertprep", "chunk_ids", "bad_input", "device_kernels", "bad_preparation_input"),
    *("docs_python", "input_pipeline", "preparation_benchmark", "dask", "long_runs", "kill_preparation"),
)
_RANKS = {f"test_{name}.py": rank for rank, name in enumerate(EXPENSIVE)}


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: _RANKS.get(item.path.name, len(_RANKS)))
