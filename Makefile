# Two commands set everything up on a fresh Debian 12 with Rust: `make demo` and `make test`.
SHELL := /bin/bash
CARGO ?= cargo
export CARGO_TARGET_DIR ?= $(CURDIR)/target

# Flags for profile-guided optimisation. The profile has no value counts, and none for functions that changed since: no
# warnings about either. Cargo separates flags that may contain spaces by the character 31.
PROFILE = -Cprofile-use=%s\037-Cllvm-args=-disable-vp\037-Cllvm-args=-no-pgo-warn-mismatch

# Builds a crate and its dependencies with these flags.
RELEASE = own=$$(for flag in $$RUSTFLAGS; do printf '%s\037' "$$flag"; done); \
	export CARGO_ENCODED_RUSTFLAGS="$$own$$(printf -- '$(PROFILE)' '$(CURDIR)/dist/evergate.profdata')"; \
	$(CARGO) build --release --locked -p

# Without evergate's profile: shared code would be laid out for the switch, and a packet would cost a fifth more.
AUDIT_RELEASE = $(CARGO) build --release --locked -p evergate-audit -p evergate-master

# Features of evergate-audit in packages.
AUDIT_FEATURES = evergate-audit/cold,evergate-audit/object-store,evergate-audit/tsa

.PHONY: setup build demo audit-demo package package-check test lint unit matrix foreign-clients audit-features \
	audit-mutations audit-kills fuzz bench audit-bench audit-bench-find profile clean help

help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: ## install the Debian packages that building and testing need (asks for root only if one is missing)
	@scripts/setup build test

build: ## build the release program
	@scripts/setup build
	@$(RELEASE) evergate

demo: ## checks of one node, then a cluster that loses its nodes under traffic; until Ctrl-C (ONCE=1: ends by itself)
	@scripts/setup build demo
	@$(CARGO) build --profile demo --locked -p evergate
	@EVERGATE="$(CARGO_TARGET_DIR)/demo/evergate" scripts/demo

audit-demo: ## record, sign, find and verify sessions in namespaces; a changed bit is found (root; a minute)
	@scripts/setup build demo test
	@$(CARGO) build --profile demo --locked -p evergate -p evergate-audit -p evergate-master
	@scripts/audit-demo

package: build ## Debian packages: target/debian/evergate*_*.deb
	@scripts/setup package
	@$(AUDIT_RELEASE) --features $(AUDIT_FEATURES)
	@scripts/package

package-check: package ## install, run, remove and purge the packages in an overlay of this machine (root)
	@scripts/setup package-check
	@scripts/package-check

test: setup lint unit ## formatting, lints, unit, property and end-to-end tests, short fuzz runs
	@FUZZ_SEED=1 FUZZ_RUNS=13000 scripts/fuzz

lint:
	$(CARGO) fmt --all --check
	scripts/licences
	scripts/prose
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

unit:
	$(CARGO) test --workspace --locked
	python3 -B -m unittest discover -q bench

matrix: setup ## all node failures with all servers in all network modes, also with packet loss (root; 15 minutes)
	CI=1 EVERGATE_MATRIX=full $(CARGO) test --workspace --locked --test cluster matrix -- --nocapture

foreign-clients: setup ## Java's TLS resumes its sessions through a passthrough listener (installs Java)
	@scripts/setup java
	$(CARGO) test -p evergate --locked --test e2e java_clients -- --ignored --nocapture

audit-features: setup ## lints and tests of evergate-audit with Parquet, object stores, time stamps (minutes)
	@scripts/setup duckdb
	$(CARGO) clippy -p evergate-audit --all-targets --locked --features $(AUDIT_FEATURES) -- -D warnings
	$(CARGO) test -p evergate-audit --locked --features $(AUDIT_FEATURES)

audit-kills: setup ## kills a Master and a Revealer 200 times at random moments (minutes)
	EVERGATE_KILLS=200 $(CARGO) test --locked -p evergate-master --test master kill_at_random -- --nocapture
	EVERGATE_KILLS=200 $(CARGO) test --locked -p evergate-audit --test reveal kill_at_random -- --nocapture

audit-mutations: setup ## 10,000 seeded changes of evidence, each found and named by the verifier (minutes)
	EVERGATE_MUTATIONS=10000 $(CARGO) test --locked -p evergate-audit --test mutations mutation -- --nocapture

fuzz: ## new inputs for the fuzz targets: peers, operators, other nodes (FUZZ_SECONDS each)
	@scripts/fuzz

bench: build ## side by side with nginx and HAProxy; results in target/bench/results.json
	@scripts/setup build bench
	@$(RELEASE) evergate -p evergate-bench
	@bench/run.py

audit-bench: ## the Recorder beside tcpdump and dumpcap: rows audit_* of target/bench/results.json (root)
	@scripts/setup build bench test
	@$(AUDIT_RELEASE)
	@$(CARGO) build --release --locked -p evergate-capture --features generator --examples
	@bench/audit.py

audit-bench-find: ## insert, find, freeze and find ten million connections of audited capture (4 GB of disk)
	@$(CARGO) build --release --locked -p evergate-audit --features cold --bin evergate-audit --example find_load
	@rm -rf $(CARGO_TARGET_DIR)/audit-find
	@$(CARGO_TARGET_DIR)/release/examples/find_load $(CARGO_TARGET_DIR)/audit-find $${CONNECTIONS:-10000000} \
		$(CARGO_TARGET_DIR)/release/evergate-audit

profile: ## record a new profile for profile-guided optimisation (root; before a release)
	@scripts/setup build bench demo
	@$(RELEASE) evergate -p evergate-bench
	@scripts/profile

clean: ## remove build results
	$(CARGO) clean
