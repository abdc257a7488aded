# The two commands of the README, and the longer ones. Each does the set-up that it needs.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help demo test build claims peers setup site

ANABRANCH := target/release/anabranch

help: ## Show this
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: ## Install what is needed and the machine lacks (a C compiler, Python's venv; clippy and rustfmt)
	@command -v cargo >/dev/null || { echo "cargo not found: install Rust with rustup (https://rustup.rs)" >&2; exit 1; }
	@command -v cc >/dev/null || { \
	  echo "no C compiler: installing build-essential" >&2; \
	  if [ "$$(id -u)" = 0 ]; then apt-get update -q && apt-get install -yq build-essential; \
	  else sudo apt-get update -q && sudo apt-get install -yq build-essential; fi; }
	@python3 -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "no Python venv: installing python3-venv" >&2; \
	  if [ "$$(id -u)" = 0 ]; then apt-get update -q && apt-get install -yq python3-venv; \
	  else sudo apt-get update -q && sudo apt-get install -yq python3-venv; fi; }
	@cargo clippy --version >/dev/null 2>&1 || rustup component add clippy
	@cargo fmt --version >/dev/null 2>&1 || rustup component add rustfmt

build: setup ## Build the release binary, and the library that announces other programs' flows
	cargo build --release --package anabranch-cli --package anabranch-preload

demo: build ## One file to three sites of an emulated Internet2, by every scheme
	$(ANABRANCH) demo

site: setup ## The documentation site, at target/site: search, light and dark, a reference from the code
	cargo build --quiet --workspace --bin anabranch --bin xtask --example sort
	target/debug/xtask site --binary target/debug/anabranch

# Where tests that cannot run here say so, a line each: of what, which, why, with tabs between them.
test: export ANABRANCH_SKIPPED := $(CURDIR)/target/skipped-tests
# A sample of an experiment, which says `skipped: 1 (why)` where it cannot run.
smoke = said=$$(python3 experiments/$(1)/run.py $(2) | tee >(cat >&2)); \
	why=$$(sed -n 's/.*skipped: 1 (\(.*\))$$/experiments\t$(1)\t\1/p' <<<"$$said"); \
	if [ -n "$$why" ]; then \
	  echo "$$why" >>"$$ANABRANCH_SKIPPED"; \
	  if [ -n "$${ANABRANCH_NO_SKIP+set}" ]; then \
	    echo "ANABRANCH_NO_SKIP is set, and this cannot run: $(1)" >&2; exit 1; fi; fi

# The example brings in the features of dev-dependencies. Without it, or by `--package xtask`, cargo
# chooses other features, and the tests compile dependencies and rooms a second time.
XTASK_BUILD := cargo build --quiet --workspace --bin xtask --example sort

# A first build is quicker without increments and line tables. Panics keep their lines, backtraces
# lose them. Incremental builds that exist are continued.
ifeq ($(wildcard target/debug/incremental/*),)
test: export CARGO_INCREMENTAL ?= 0
test: export CARGO_PROFILE_DEV_DEBUG ?= none
endif
# Tests mostly wait, for sockets and emulated time: two threads used a quarter of two processors.
test: export RUST_TEST_THREADS ?= 6
test: setup ## Everything that continuous integration runs
	@mkdir -p target && : >"$$ANABRANCH_SKIPPED"
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --quiet -- --deny warnings
	RUSTDOCFLAGS="--deny warnings" cargo doc --workspace --no-deps --quiet
	$(XTASK_BUILD)
	target/debug/xtask tidy
	cargo test --workspace --no-fail-fast
	$(call smoke,codedbulk-throughput,smoke --binary target/debug/anabranch)
	$(call smoke,datasets,smoke --binary target/debug/anabranch)
	$(call smoke,gather-paths,smoke --binary target/debug/anabranch)
	$(call smoke,gather-fairness,smoke --binary target/debug/anabranch)
	$(call smoke,spray,smoke --binary target/debug/anabranch)
	$(call smoke,broker,smoke --binary target/debug/anabranch)
	$(call smoke,live,smoke --binary target/debug/anabranch)
	$(call smoke,circuit,smoke --binary target/debug/anabranch)
	$(call smoke,rehdfs,smoke --binary target/debug/anabranch)
	$(call smoke,recipes,smoke --binary target/debug/anabranch)
	$(call smoke,live-emulated,smoke --binary target/debug/anabranch)
	$(call smoke,live-speed,smoke --binary target/debug/anabranch)
	$(call smoke,live-browser,smoke --binary target/debug/anabranch)
	$(call smoke,broker-players,smoke --binary target/debug/anabranch)
	$(call smoke,broker-schedules,smoke --binary target/debug/anabranch)
	$(call smoke,spray-emulated,smoke --binary target/debug/anabranch)
	$(call smoke,sim-vs-ns3,smoke --binary target/debug/anabranch --xtask target/debug/xtask)
	$(call smoke,shuffle-trace,smoke --binary target/debug/anabranch)
	python3 -W ignore::ResourceWarning -m unittest discover --quiet clients/python/tests
	$(call smoke,shuffle-sort,smoke --binary target/debug/anabranch --sort target/debug/examples/sort)
	ANABRANCH_BIN=$(CURDIR)/target/debug/anabranch python/test.sh
	@sort -u "$$ANABRANCH_SKIPPED" | cut -f 3 | sort | uniq -c | sort -rn
	@count=$$(cut -f 1,2 "$$ANABRANCH_SKIPPED" | sort -u | wc -l); \
	if [ "$$count" = 0 ]; then echo "all tests ran, none was skipped (the long claims are those of make claims)"; \
	else echo "$$count tests were skipped, for the reasons above (ANABRANCH_NO_SKIP=1 has them fail)"; fi
	@if [ -n "$${ANABRANCH_MAY_SKIP:-}" ]; then \
	  allowed=$$(grep -v '^#' "$$ANABRANCH_MAY_SKIP"); \
	  if grep -vF "$$allowed" "$$ANABRANCH_SKIPPED"; then \
	    echo "these may not be skipped here: $$ANABRANCH_MAY_SKIP has no such reason" >&2; exit 1; fi; fi

peers: build ## Ours beside BitTorrent, rsync and curl on emulated networks (hours; resumable)
	command -v rsync curl >/dev/null || apt-get install -yq rsync curl
	test -d .venv || python3 -m venv .venv
	.venv/bin/pip install --quiet libtorrent
	.venv/bin/python experiments/replicate-peers/run.py all

claims: export ANABRANCH_SKIPPED := $(CURDIR)/target/skipped-claims
claims: build ## The long claims: every instance of the planner's claims, schedules of kills, silent connections, measured times and rates
	@: >"$$ANABRANCH_SKIPPED"
	cargo test --release --package anabranch-replicate-proto -- --ignored --nocapture
	cargo test --release --package anabranch-cli --test it -- --ignored --nocapture --test-threads 1
	for room in emu linux live; do \
	  cargo test --release --package anabranch-$$room --test it -- --ignored --nocapture --test-threads 1; done
	ANABRANCH_LONG=1 cargo test --release --package anabranch-preload-dilate --test it -- --nocapture ping
	$(call smoke,codedbulk-throughput,claim --binary $(ANABRANCH))
	ANABRANCH_LONG=1 ANABRANCH_BIN=$(CURDIR)/$(ANABRANCH) python/test.sh
	@sort -u "$$ANABRANCH_SKIPPED" | cut -f 3 | sort | uniq -c | sort -rn
	@echo "$$(cut -f 1,2 "$$ANABRANCH_SKIPPED" | sort -u | wc -l) claims were skipped, for the reasons above"
