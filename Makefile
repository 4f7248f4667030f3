# Two commands: `make generate` sets everything up and emits, compiles and demonstrates the kernels; `make test` tests.
PYTHON ?= python3
VENV   ?= .venv
PY     := $(VENV)/bin/python
STAMP  := $(VENV)/.dsl_kernels
LEVEL  ?= 0
ARCHS  ?= sm_90a sm_100a
AOT    ?= build/aot
SITE   ?= site
UV     ?= uv
# What torch's build for CUDA brings, which its CPU build does without: requirements-torch.lock alone has it.
CUDA_OF_TORCH = torch triton cuda-toolkit $(addprefix nvidia-,cublas cuda-cupti cuda-nvrtc cuda-runtime cudnn-cu13 \
	cufft cufile curand cusolver cusparse cusparselt-cu13 nccl-cu13 nvjitlink nvshmem-cu13 nvtx)

.DEFAULT_GOAL := help
.PHONY: help setup generate check compile test test-all test-gpu lint docs site bench aot emulator-wheel lock clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(STAMP) ## virtual environment and locked dependencies

$(STAMP): requirements.lock requirements-torch.lock requirements-toolkit.lock pyproject.toml distributions/dsl_kernels_lab/pyproject.toml \
		distributions/dsl_kernels_lab/setup.py scripts/setup.py
	$(PYTHON) scripts/setup.py $(VENV)
	@touch $@

generate: $(STAMP) ## emit, check and compile the committed variants, then run one decode step
	@$(PY) -m codegen generate --level $(LEVEL)
	@$(PY) -m dsl_kernels run decode --size demo

check: $(STAMP) ## fail with the list of generated files that are out of step
	@$(PY) -m codegen check

compile: $(STAMP) ## compile every committed variant (no GPU needed)
	@$(PY) -m dsl_kernels compile --all

test: $(STAMP) ## what needs no GPU: every test, large ones at cases that TEST_SEED draws
	@$(PY) -m pytest tests -n auto -m "not sm90 and not sm100"

test-all: $(STAMP) ## what needs no GPU, every test at every case (hours)
	@TEST_ALL=1 $(PY) -m pytest tests -n auto -m "not sm90 and not sm100"

test-gpu: $(STAMP) ## numerics on the GPU that is present
	@$(PY) -m pytest tests -m "sm90 or sm100"

lint: $(STAMP) ## ruff, its formatter and mypy
	@$(PY) -m ruff check dsl_kernels dsl_kernels_lab ptx_emulator codegen generated tests benchmarks scripts examples
	@$(PY) -m ruff format --check --quiet dsl_kernels dsl_kernels_lab ptx_emulator codegen tests benchmarks scripts examples
	@$(PY) -m mypy

docs: $(STAMP) ## tables, excerpts and pictures that are generated into the documents
	@$(PY) scripts/record_builds.py
	@$(PY) scripts/update_docs.py

site: $(STAMP) ## the site, from the documents and docstrings, in site/ (installs the extra `docs` when it is missing)
	@$(PY) -c "import material, mkdocstrings_handlers.python" 2>/dev/null || $(PY) -m pip install --quiet --disable-pip-version-check --no-build-isolation -e ".[docs]"
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --site-dir $(SITE)
	@echo "$(SITE)/index.html"

bench: $(STAMP) ## time every operation on the GPU that is present
	@$(PY) -m dsl_kernels bench

aot: $(STAMP) ## bundles that run without a DSL or a compiler, one an architecture, in build/aot
	@for arch in $(ARCHS); do $(PY) -m dsl_kernels bundle write $(AOT)/$$arch --arch $$arch --force || exit 1; done

emulator-wheel: $(STAMP) ## the emulator alone, as a manylinux wheel that is tried, in build/wheels
	@$(PY) scripts/emulator_wheel.py build/wheels

lock: ## pin and hash what setup installs (needs uv); versions stay unless UPGRADE=--upgrade is given
	@$(UV) pip compile --quiet $(UPGRADE) --group torch -o requirements-torch.lock
	@$(UV) pip compile --quiet $(UPGRADE) pyproject.toml -c requirements-torch.lock \
		$(addprefix --extra ,tilelang cutedsl inspect emulator dev) \
		$(addprefix --no-emit-package ,$(CUDA_OF_TORCH)) -o requirements.lock
	@$(UV) pip compile --quiet $(UPGRADE) --group toolkit -c requirements-torch.lock -o requirements-toolkit.lock

clean: ## remove the virtual environment, caches of the tools and untracked output
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache build site *.egg-info
