"""What XLA chose is kept: by rank, as a whole or not at all."""

from bert_tf.base.determinism import keep_autotune_results, make_deterministic


def flags_of(folder, **environ):
    make_deterministic(folder, environ)
    assert environ["TF_DETERMINISTIC_OPS"] == "1"
    return environ["XLA_FLAGS"]


def test_what_the_user_has_set_stays(tmp_path):
    assert flags_of(tmp_path, XLA_FLAGS="--xla_dump_to=x").startswith(
        "--xla_dump_to=x --xla_gpu_deterministic_ops=true "
    )


def test_a_file_that_was_cut_off_is_not_read(tmp_path):
    """XLA writes it with each compilation; only a checkpoint makes it the run's."""
    written = flags_of(tmp_path).split("--xla_gpu_dump_autotune_results_to=")[1]
    assert written.endswith(".txt"), "or XLA writes it in another format"
    with open(written, "w") as file:
        file.write("half of")
    assert "load_autotune" not in flags_of(tmp_path)
    keep_autotune_results(tmp_path, {})
    assert flags_of(tmp_path).endswith(f"--xla_gpu_load_autotune_results_from={tmp_path}/xla_autotune_results_0.txt")
    keep_autotune_results(tmp_path, {})  # nothing new
    assert (tmp_path / "xla_autotune_results_0.txt").read_text() == "half of"


def test_each_rank_has_its_own(tmp_path):
    names = {
        flags_of(tmp_path, **{variable: str(rank)}).split("=")[-1]
        for rank, variable in enumerate(("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"))
    }
    assert len(names) == 3
