# Every target makes .venv first if there is none. TORCH chooses the torch that is installed.
PYTHON ?= python3
TORCH ?= torch==2.13.0
# The torch that torch_xla's last release is built for.
PEER_TORCH ?= torch==2.9.1
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: install demo check test quick long faults docker interop opinfo fuzz fuzz-coverage bench peers screenshots docs clean

install: $(STAMP)

# pip itself is asked only when what it would install has changed. An editable install in compat mode is
# a plain entry of sys.path: a script that lies beside a clone named trcomp still imports the package.
$(STAMP): setup.cfg pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed: make PYTHON=python3.12 ..." >&2; exit 69; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "Installing $(TORCH), then trcomp and its tools: minutes on a first run."
	$(BIN)/python -m pip install --quiet $(TORCH)
	$(BIN)/python -m pip install --quiet --config-settings editable_mode=compat \
		--editable ".[runtime,examples,dev]"
	@touch $@

demo: $(STAMP)
	GPU_NUM_DEVICES=2 $(BIN)/python examples/vit/launch.py

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Of these directories two files run at a time, each in one process; what is elsewhere runs alone.
TOGETHER ?= tests/runtime tests/unit tests/e2e

test: check
	$(BIN)/pytest -m "not long and not faults" -n 2 --dist loadfile --no-loadscope-reorder $(TOGETHER)
	$(BIN)/pytest -m "not long and not faults" $(TOGETHER:%=--ignore=%)

# More models against the CPU: minutes apiece.
long: $(STAMP)
	$(BIN)/pytest -m long

# Every fault that a job is meant to survive or to explain, then the page about them.
faults: $(STAMP)
	$(BIN)/pytest tests/e2e/test_faults.py

quick: $(STAMP)
	$(BIN)/pytest -m "not slow and not long and not e2e and not docker"

# Jobs in containers on a real engine: one that answers already, or one that is started for it.
docker: $(STAMP)
	@host=$$(tests/docker/engine.sh start build/engine) || exit; \
	DOCKER_HOST=$$host DOCKER_TESTS=required $(BIN)/pytest tests/docker; code=$$?; \
	tests/docker/engine.sh stop build/engine; exit $$code

# What holds between trcomp and SageMaker's SDKs, TensorBoard and MLflow, in environments of their own.
interop: build/interop/v2/.installed build/interop/v3/.installed build/interop/sinks/.installed
	build/interop/v2/bin/python -m pytest -W default tests/interop/test_sdk_v2.py
	build/interop/v3/bin/python -m pytest -W default tests/interop/test_sdk_v3.py
	build/interop/sinks/bin/python -m pytest -W default tests/interop/test_metric_sinks.py

build/interop/v2/.installed: SDK = sagemaker>=2.257,<3
build/interop/v3/.installed: SDK = sagemaker>=3.27,<4
build/interop/sinks/.installed: SDK = mlflow>=2.14,<4
build/interop/sinks/.installed: EXTRAS = ,tensorboard
build/interop/%/.installed: setup.cfg
	$(PYTHON) -m venv build/interop/$*
	build/interop/$*/bin/python -m pip install --quiet --config-settings editable_mode=compat \
		--editable ".[test$(EXTRAS)]" "$(SDK)"
	@touch $@

# Every sample of PyTorch's operators, then the page about them; hours on two cores.
opinfo: $(STAMP)
	$(BIN)/python -m tests.runtime.opinfo_run
	$(BIN)/python -m docs.ops

# Damaged input of every kind, a million cases; what it prints is enough to run a case again.
fuzz: $(STAMP)
	$(BIN)/python -m tests.fuzz

# The same targets, each for MINUTES, guided by the code's coverage: atheris, in an environment of its own.
MINUTES ?= 5
fuzz-coverage: build/atheris/.installed
	build/atheris/bin/python -m tests.fuzz --coverage --minutes $(MINUTES)

build/atheris/.installed: setup.cfg
	$(PYTHON) -m venv build/atheris
	build/atheris/bin/python -m pip install --quiet --config-settings editable_mode=compat \
		--editable ".[test]" "atheris>=3,<4"
	@touch $@

bench: $(STAMP)
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks.page
	$(BIN)/python -m benchmarks.scale_page

# What benchmarks compare with, each in an environment of its own; torch's plain wheel brings CUDA's
# libraries along, 7 GB. One that cannot be installed is left out of the benchmarks.
peers: build/peers/torch_xla/.installed build/peers/flax/.installed

build/peers/%/.installed: benchmarks/peers/%.txt
	$(PYTHON) -m venv build/peers/$*
	@echo "Installing what $< names."
	@{ [ $* != torch_xla ] || build/peers/$*/bin/python -m pip install --quiet $(PEER_TORCH); } && \
		build/peers/$*/bin/python -m pip install --quiet --requirement $< && touch $@ || \
		{ echo "Left out: $* cannot be installed here; pip says why above." >&2; rm -rf build/peers/$*; }

# The pictures of docs/job-page.md, from a job that trains; needs Chromium.
screenshots: $(STAMP)
	$(BIN)/python -m docs.screenshots

docs: $(STAMP)
	$(BIN)/python -m docs.generate
	$(BIN)/python -m docs.environment
	$(BIN)/python -m docs.sagemaker
	$(BIN)/python -m docs.doctor
	$(BIN)/python -m docs.torch_xla_names

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -not -path "./.venv/*" -prune -exec rm -rf {} +
