# make demo   the main job, end to end, with a VM that dies on the way (5 minutes)
# make demo-study   the pipeline as a study: three arms, stopped and resumed in the middle, a written decision (6 minutes)
# make test   the tests
# make check  ruff and mypy
# make chaos  attacks everything at random points, seeded (ROUNDS=20 SEED=0), and checks that nothing was lost
# make screenshots  each state of the control panel at three widths, light and dark, into docs/screenshots/
# make bench  each number as a ratio against a bare baseline in the same run

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TEST_JOBS ?= 3
ROUNDS ?= 20
SEED ?= 0

.PHONY: demo demo-study test check bench chaos screenshots clean
demo: $(STAMP)
	$(BIN)/bridgehead demo $(DEMO_ARGS)

demo-study: $(STAMP)
	$(BIN)/bridgehead demo --study $(DEMO_ARGS)

test: $(STAMP)
	$(BIN)/python -m pytest -n $(TEST_JOBS) --dist loadfile $(TEST_ARGS)

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: $(STAMP)
	$(BIN)/python -m bench $(BENCH_ARGS)

chaos: $(STAMP)
	$(BIN)/python -m chaos --rounds $(ROUNDS) --seed $(SEED) $(CHAOS_ARGS)

screenshots: $(STAMP)
	PYTHONPATH=.:tests $(BIN)/python tests/panel_screenshots.py $(SCREENSHOT_ARGS)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Bridgehead needs Python 3.11 or newer, not " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[local,panel,dev]'
	@touch $@

clean:
	rm -rf $(VENV) build *.egg-info
