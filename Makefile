# Two commands set everything up on a fresh Debian 12 with Rust: `make demo` and `make test`.
SHELL := /bin/bash
CARGO ?= cargo
export CARGO_TARGET_DIR ?= $(CURDIR)/target

# Which ways through the program are the usual ones. Values were not counted, and what has changed since has no counts: neither
# is worth a warning. Cargo wants flags that may contain spaces apart by the character 31.
PROFILE = -Cprofile-use=%s\037-Cllvm-args=-disable-vp\037-Cllvm-args=-no-pgo-warn-mismatch

# Builds a package and its dependencies with these flags.
RELEASE = own=$$(for flag in $$RUSTFLAGS; do printf '%s\037' "$$flag"; done); \
	export CARGO_ENCODED_RUSTFLAGS="$$own$$(printf -- '$(PROFILE)' '$(CURDIR)/dist/evergate.profdata')"; \
	$(CARGO) build --release --locked -p

.PHONY: setup build demo package package-check test lint unit matrix fuzz bench profile clean help

help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: ## install what building and testing need (Debian packages; asks for root only when something is missing)
	@scripts/setup build test

build: ## build the release binary
	@scripts/setup build
	@$(RELEASE) evergate

demo: ## one node's checks, then a cluster that loses its nodes under traffic; stays up until Ctrl-C (ONCE=1 ends by itself)
	@scripts/setup build demo
	@$(CARGO) build --profile demo --locked -p evergate
	@EVERGATE="$(CARGO_TARGET_DIR)/demo/evergate" scripts/demo

package: build ## Debian package: target/debian/evergate_*.deb
	@scripts/setup package
	@scripts/package

package-check: package ## install, run, remove and purge the package in an overlay of this machine (root)
	@scripts/setup package-check
	@scripts/package-check

test: setup lint unit ## formatting, lints, unit, property and end-to-end tests, short fuzz runs
	@FUZZ_SEED=1 FUZZ_RUNS=13000 scripts/fuzz

lint:
	$(CARGO) fmt --all --check
	scripts/licences
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

unit:
	$(CARGO) test --workspace --locked
	python3 -B -m unittest discover -q bench

matrix: setup ## all fates of nodes before all servers in all network modes, also with loss (root; about a quarter of an hour)
	CI=1 EVERGATE_MATRIX=full $(CARGO) test --workspace --locked --test cluster matrix -- --nocapture

fuzz: ## new inputs for the fuzz targets: whatever a peer, an operator or another node can say (FUZZ_SECONDS each)
	@scripts/fuzz

bench: build ## side by side with nginx and HAProxy; results in target/bench/results.json
	@scripts/setup build bench
	@$(RELEASE) evergate -p evergate-bench
	@bench/run.py

profile: ## count anew which ways through the program are the usual ones (root; before a release)
	@scripts/setup build bench demo
	@$(RELEASE) evergate -p evergate-bench
	@scripts/profile

clean: ## remove build results
	$(CARGO) clean
