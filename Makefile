SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := all

# Packages that must build and pass without cgo.
PURE := ./internal/... ./envs/... ./rl ./rl/report ./lora ./torch/pickle ./torch/gguf/... ./torch/safetensors ./torch/hub ./torch/transformers/jinja ./torch/transformers/chat
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
# What go needs in its environment; builds libtokenizers.a on first use.
GOENV = env="$$(scripts/setup/env.sh)" && eval "$$env" &&

.PHONY: all core cuda bundle cli models env test check lint asan race fuzz bench compat load crash dist mutants fixtures clean help

all: core cli models ## everything: the core, bin/rltrain and the default model (the default)

core: build/.tools ## the C++ core, build/lib/librltrain.so
	@scripts/setup/core.sh

cuda: core ## librltrain_cuda.so, for --device cuda; fetches 1.9 GB where no Python torch has the libraries
	@scripts/setup/cuda.sh

bundle: cuda cli ## build/rltrain-linux-x86_64.tar.xz: what runs with another machine's libtorch, and its tests
	@scripts/setup/bundle.sh

cli: build/.tools ## bin/rltrain
	@$(GOENV) go build -o bin/rltrain ./cmd/rltrain

models: cli ## put the models smollm2 and all-MiniLM-L6-v2 and the interpreter of pepper into the cache
	@bin/rltrain models pull all-MiniLM-L6-v2 > /dev/null
	@bin/rltrain models pull smollm2 > /dev/null
	@python3 scripts/setup/pepper.py > /dev/null

env: build/.tools ## print the exports for plain go test, go vet and gopls: eval "$$(make env)"
	@scripts/setup/env.sh

test: core cli models ## build everything and run all tests
	@scripts/setup/core.sh core_tests
	@cd build && ctest --output-on-failure
	@$(GOENV) go vet ./...
	CGO_ENABLED=0 go test $(PURE)
	@echo go test, all other packages; $(GOENV) go test $$(comm -23 <(go list ./... | sort) <(go list $(PURE) | sort))

check: core ## what fails most often, in two minutes: go vet, the pure Go packages, the C++ tests with the fastest kernels
	@$(GOENV) go vet ./...
	@CGO_ENABLED=0 go test $(PURE)
	@scripts/setup/core.sh core_tests
	@cd build && ./core_tests

asan: build/.tools ## the C++ tests under the address and undefined behaviour sanitizers, in build/asan
	@scripts/setup/core.sh core_tests build/asan -DRLTRAIN_SANITIZE=ON
	@cd build/asan && ctest --output-on-failure

lint: build/.tools ## gofmt, go vet, staticcheck, clang-format
	@files="$$(gofmt -l .)"; [[ -z $$files ]] || { echo "not gofmt-ed:"; echo "$$files"; exit 1; }
	@$(GOENV) go vet ./... && go run $(STATICCHECK) ./...
	@format="$$(python3 scripts/setup/clang_format.py)" && \
	  find csrc -name '*.cc' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' | xargs "$$format" --dry-run -Werror

race: core models ## all Go tests under the race detector
	@$(GOENV) go test -race ./...

fuzz: core models ## every fuzz target for FUZZTIME (10s)
	@$(GOENV) scripts/fuzz.sh

bench: core models ## all Go benchmarks
	@$(GOENV) go test -run '^$$' -bench . -benchmem ./...

compat: all cuda ## compare with transformers, peft and OpenAI's client (needs Python; makes virtual environments); compile for GPUs
	@scripts/compat.sh -r scripts/serve.txt scripts/serve.py
	@scripts/compat.sh
	@scripts/compat.sh scripts/trl_options.py
	@scripts/compat.sh scripts/trl_runs.py
	@scripts/compat.sh scripts/gguf_parity.py
	@scripts/compat.sh scripts/gguf_export.py

load: all ## 200 clients of a server at once, half of them cut off; training on servers that are killed
	@$(GOENV) go test -count=1 -timeout 20m -run Load -tags load ./cmd/...

crash: all ## kill training runs and resume them
	@$(GOENV) go test -count=1 -timeout 90m -run Crash -tags crash ./cmd/...
	@$(GOENV) go test -count=1 -timeout 30m -tags crash ./envs/sandbox

dist: all ## train with several processes what one trains, and kill some of them
	@$(GOENV) go test -count=1 -timeout 30m -run Dist -tags dist ./cmd/rltrain/app

mutants: core ## put faults into the code, one line at a time; the tests have to notice each
	@$(GOENV) go run ./scripts/mutants

fixtures: ## regenerate the committed parity fixtures (needs Python)
	@for script in scripts/fixtures/*.py; do scripts/compat.sh "$$script"; done

clean: ## remove what make built here; the cache stays
	rm -rf build bin lib

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { gsub(/\$$\$$/, "$$", $$2); printf "%-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build/.tools: scripts/setup/tools.sh
	@scripts/setup/tools.sh
	@mkdir -p build && touch $@
