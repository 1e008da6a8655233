# make demo: the whole wheel on this machine; make demo-smollm2: a pretrained chat model on real films; make demo-documents: the same from documents and a teacher alone; make test: the tests (make test-long: the longest of them); make setup: the environment alone.
PYTHON ?= $(shell for name in python3.11 python3.12 python3; do command -v $$name && break; done)
EXTRA ?= cpu
VENV := .venv
BIN := $(VENV)/bin
UNIT := not engine and not end_to_end and not slow and not long
# A worker that dies ends the run, and its test is named: xdist waits for ever for one that takes the place of another (pytest-xdist 784).
PYTEST := $(BIN)/pytest -q --max-worker-restart 0
STAMP := $(VENV)/.installed-$(EXTRA)
export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)

.PHONY: setup demo demo-smollm2 demo-documents test test-long unit lint docs clean lock

setup: $(STAMP)

$(STAMP): requirements/$(EXTRA).lock pyproject.toml
	PYTHON="$(PYTHON)" EXTRA="$(EXTRA)" VENV="$(VENV)" sh requirements/install.sh
	@touch $@
	@echo "next: make demo, or source $(VENV)/bin/activate and flywheel --help"

demo: $(STAMP)
	$(BIN)/flywheel run --profile quickstart --home runs/demo --turns 2

demo-smollm2: $(STAMP)
	$(BIN)/flywheel data get films
	test -d models/smollm2 || $(BIN)/flywheel model smollm2 --to models/smollm2
	$(BIN)/flywheel run --profile smollm2 --home runs/smollm2

demo-documents: $(STAMP)
	$(BIN)/flywheel data get films
	test -d models/smollm2 || $(BIN)/flywheel model smollm2 --to models/smollm2
	test -d models/qwen-1.5b || $(BIN)/flywheel model qwen-coder-1.5b --to models/qwen-1.5b --dtype bfloat16
	$(BIN)/flywheel run --profile documents --home runs/documents

test test-long unit: export PYTHONDONTWRITEBYTECODE =

# The wheel comes first by its name and takes the longest: files are taken in their order, not the fullest first.
test: $(STAMP)
	$(PYTEST) -rs -n 2 -m "$(UNIT)"
	$(PYTEST) -rs --durations 60 --durations-min 6 -n 3 --dist loadfile --no-loadscope-reorder -m "(slow or engine or end_to_end) and not long"

test-long: $(STAMP)
	$(PYTEST) -rs -n 2 --dist loadfile -m "long"

unit: $(STAMP)
	$(PYTEST) -n 2 -m "$(UNIT)"

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The site in build/site; a broken link or anchor fails.
docs: $(STAMP)
	$(BIN)/zensical build --clean --strict

lock:
	for extra in cpu gpu; do $(BIN)/uv pip compile -q pyproject.toml --extra $$extra --extra dev --universal --python-version 3.11 \
		--no-annotate --no-header --generate-hashes -o requirements/$$extra.lock; done
	awk '/^[^ ]/ { torch = /^torch==/; if (torch && !seen++) { sub(/[+ ].*/, ""); print } } !torch' requirements/cpu.lock \
		> requirements/cpu.lock.new && mv requirements/cpu.lock.new requirements/cpu.lock  # its build is chosen on installing

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache
