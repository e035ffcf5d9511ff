SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := all

# Packages that must build and pass without cgo.
PURE := ./internal/... ./envs/... ./rl ./rl/report ./lora ./torch/pickle ./torch/gguf/... ./torch/safetensors ./torch/hub ./torch/transformers/jinja ./torch/transformers/chat ./torch/transformers/decision
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
ACTIONLINT := github.com/rhysd/actionlint/cmd/actionlint@v1.7.12
# What go needs in its environment; builds libtokenizers.a on first use.
GOENV = env="$$(scripts/setup/env.sh)" && eval "$$env" &&

# The commit that rltrain version prints, with + after it if the sources have changes; empty without git.
STAMP = $$(git rev-parse HEAD 2> /dev/null || true)$$([[ -z "$$(git status --porcelain --untracked-files=no 2> /dev/null || true)" ]] || echo +)

.PHONY: all install install-files core cuda wheel bundle release bundle-tests cli models env test check lint asan race fuzz bench compat load crash dist mutants mutants-core fixtures clean help

all: core cli models ## build everything: the core, bin/rltrain and the default models (the default target)

# Where make install puts files; DESTDIR goes before it.
PREFIX ?= $(HOME)/.local
TO = $(DESTDIR)$(PREFIX)

install: all install-files ## build everything and copy rltrain, its libraries, manual page and completion files to $$PREFIX (default ~/.local)

install-files: cli
	@install -Dm755 bin/rltrain "$(TO)/bin/rltrain"
	@for library in build/lib/*.so; do install -Dm755 "$$library" -t "$(TO)/lib/rltrain"; done
	@install -d "$(TO)/share/man/man1" "$(TO)/share/bash-completion/completions" "$(TO)/share/zsh/site-functions" "$(TO)/share/fish/vendor_completions.d"
	@bin/rltrain man > "$(TO)/share/man/man1/rltrain.1"
	@bin/rltrain completion bash > "$(TO)/share/bash-completion/completions/rltrain"
	@bin/rltrain completion zsh > "$(TO)/share/zsh/site-functions/_rltrain"
	@bin/rltrain completion fish > "$(TO)/share/fish/vendor_completions.d/rltrain.fish"
	@[[ -n "$(DESTDIR)" || ":$$PATH:" == *":$(PREFIX)/bin:"* ]] || echo "add $(PREFIX)/bin to PATH"

core: build/.tools ## build the C++ core, build/lib/librltrain.so
	@scripts/setup/core.sh

cuda: core ## build librltrain_cuda.so, for --device cuda; downloads 2.2 GB if no Python torch has the CUDA libraries
	@scripts/setup/cuda.sh

# What packages contain: GPUs are for x86-64 alone.
PACKED := $(if $(filter x86_64,$(shell uname -m)),cuda,core)

wheel: $(PACKED) ## build the wheel for pip in dist; it needs neither Python code nor libtorch
	@$(GOENV) go run ./scripts/release wheel

bundle: $(PACKED) ## build the tarball for machines without Python in dist
	@$(GOENV) go run ./scripts/release tarball

release: $(PACKED) ## build the wheel, the tarball, the list of components, the changes and checksums in dist
	@$(GOENV) go run ./scripts/release all

bundle-tests: cuda cli ## build rltrain and its tests for another machine: build/rltrain-tests-linux-MACHINE.tar.xz
	@scripts/setup/bundle.sh

cli: build/.tools ## build bin/rltrain
	@$(GOENV) go build -ldflags="-X github.com/rltrain/rltrain/internal/version.stamp=$(STAMP)" -o bin/rltrain ./cmd/rltrain

models: cli ## download the models all-MiniLM-L6-v2 and smollm2, and the interpreter of recipe pepper, to the cache
	@bin/rltrain models pull all-MiniLM-L6-v2 > /dev/null
	@bin/rltrain models pull smollm2 > /dev/null
	@go run ./scripts/setup pepper > /dev/null

env: build/.tools ## print the environment that go test, go vet and gopls need; use it with eval "$$(make env)"
	@scripts/setup/env.sh

test: core cli models ## build everything and run all tests
	@scripts/setup/core.sh core_tests
	@cd build && ctest --output-on-failure
	@$(GOENV) go vet ./...
	CGO_ENABLED=0 go test $(PURE)
	@echo go test, all other packages; $(GOENV) go test $$(comm -23 <(go list ./... | sort) <(go list $(PURE) | sort))

check: core ## run the quick tests, about two minutes: go vet, the pure Go packages, the C++ tests with the fastest kernels
	@$(GOENV) go vet ./...
	@CGO_ENABLED=0 go test $(PURE)
	@scripts/setup/core.sh core_tests
	@cd build && ./core_tests

asan: build/.tools ## run the C++ tests with the address and undefined behavior sanitizers, in build/asan
	@scripts/setup/core.sh core_tests build/asan -DRLTRAIN_SANITIZE=ON
	@cd build/asan && ctest --output-on-failure

lint: build/.tools ## run gofmt, go vet, staticcheck, clang-format and actionlint
	@files="$$(gofmt -l .)"; [[ -z $$files ]] || { echo "not gofmt-ed:"; echo "$$files"; exit 1; }
	@$(GOENV) go vet ./... && go run $(STATICCHECK) ./...
	@format="$$(go run ./scripts/setup clang-format)" && \
	  find csrc -name '*.cc' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' | xargs "$$format" --dry-run -Werror
	@go run $(ACTIONLINT) .github/workflows/*.yml

race: core models ## run all Go tests with the race detector
	@$(GOENV) go test -race ./...

fuzz: core models ## run every fuzz target for $$FUZZTIME (default 10s)
	@$(GOENV) scripts/fuzz.sh

bench: core models ## run all Go benchmarks
	@$(GOENV) go test -run '^$$' -bench . -benchmem ./...

compat: all wheel bundle ## test the packages, and the core for arm64 under qemu if it is installed; compare with transformers, peft, TRL, llama.cpp, the clients of OpenAI and Tinker, and lm-evaluation-harness, and compile for GPUs (needs Python; creates virtual environments)
	@scripts/install.sh
	@scripts/arm64.sh
	@scripts/compat.sh -r scripts/serve.txt scripts/serve.py
	@scripts/compat.sh -r scripts/serve_train.txt scripts/serve_train.py
	@scripts/compat.sh -r scripts/serve_train_json.txt scripts/serve_train.py
	@$(GOENV) scripts/compat.sh -r scripts/engine.txt scripts/engine.py
	@scripts/compat.sh -r scripts/harness.txt scripts/harness.py
	@scripts/compat.sh -r scripts/environments.txt scripts/environments.py
	@scripts/compat.sh
	@scripts/compat.sh scripts/trl_options.py
	@scripts/compat.sh scripts/trl_runs.py
	@scripts/compat.sh scripts/families.py
	@scripts/compat.sh scripts/decisions.py
	@scripts/compat.sh scripts/gguf_parity.py
	@scripts/compat.sh scripts/gguf_export.py

load: all ## test a server with 200 clients at once, half of which disconnect, and training with rollout servers that are killed
	@$(GOENV) go test -count=1 -timeout 20m -run Load -tags load ./cmd/...

crash: all ## test that killed training runs resume
	@$(GOENV) go test -count=1 -timeout 90m -run Crash -tags crash ./cmd/...
	@$(GOENV) go test -count=1 -timeout 30m -tags crash ./envs/sandbox

dist: all ## test training with several processes: same results as with one, and what happens if some are killed
	@$(GOENV) go test -count=1 -timeout 30m -run Dist -tags dist ./cmd/rltrain/app

mutants: core ## change the code one line at a time and check that the tests fail each time; with SAMPLE=200 SEED=41 at random
	@$(GOENV) go run ./scripts/mutants $(if $(SAMPLE),-sample $(SAMPLE) -seed $(or $(SEED),1))

mutants-core: core ## the same for the native core
	@$(GOENV) go run ./scripts/mutants -core

fixtures: ## regenerate the committed parity fixtures (needs Python)
	@for script in scripts/fixtures/*.py; do scripts/compat.sh "$$script"; done

clean: ## delete build, bin and lib; keep the cache
	rm -rf build bin lib

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { gsub(/\$$\$$/, "$$", $$2); printf "%-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build/.tools: scripts/setup/tools.sh
	@scripts/setup/tools.sh
	@mkdir -p build && touch $@
