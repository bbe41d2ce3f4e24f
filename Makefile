# make check: everything that does not run the product; make test: all of it.
.PHONY: check format test test-all-versions lock

versions = $(notdir $(wildcard requirements/2.*))

check:
	bash scripts/setup.sh --test
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	shellcheck .ci/run $(wildcard scripts/*.sh scripts/*.sub scripts/*/*.sh data/*.sh)

format:
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

test:
	bash scripts/test.sh

# With each TensorFlow, in an environment of its own beside .venv (docs/machines.md).
test-all-versions:
	for version in $(versions); do TENSORFLOW=$$version BERT_VENV=$(CURDIR)/.venv-$$version bash scripts/test.sh || exit 1; done

# Chooses the versions in requirements/*/lock-*.txt anew; needs uv (python3 -m pip install uv).
compile = uv pip compile --quiet --upgrade --universal --python-version 3.9 --no-header --no-annotate --generate-hashes
needed = requirements/base.txt requirements/horovod.txt
lock: $(versions:%=lock-%)
lock-%:
	$(compile) $(needed) requirements/$*/cpu.txt --output-file requirements/$*/lock-cpu.txt
	$(compile) $(needed) requirements/$*/gpu.txt --constraint requirements/$*/lock-cpu.txt --output-file requirements/$*/lock-gpu.txt
	$(compile) requirements/$*/test.txt --constraint requirements/$*/lock-gpu.txt --output-file requirements/$*/lock-test.txt
