# make check: everything that does not run the product; make test: all of it.
.PHONY: check format test lock

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

# Chooses the versions in requirements/*/lock-*.txt anew; needs uv (python3 -m pip install uv).
versions = 2.15 2.17 2.20
compile = uv pip compile --quiet --upgrade --universal --python-version 3.9 --no-header --no-annotate --generate-hashes
needed = requirements/base.txt requirements/horovod.txt
lock: $(versions:%=lock-%)
lock-%:
	$(compile) $(needed) requirements/$*/cpu.txt --output-file requirements/$*/lock-cpu.txt
	$(compile) $(needed) requirements/$*/gpu.txt --constraint requirements/$*/lock-cpu.txt --output-file requirements/$*/lock-gpu.txt
	$(compile) requirements/$*/test.txt --constraint requirements/$*/lock-gpu.txt --output-file requirements/$*/lock-test.txt
