package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/rl/report"
)

// distributedExperiment is training by several ranks on one machine: the time of a step, the bytes it exchanges, and an
// estimate for many machines.
type distributedExperiment struct {
	*experiment
	results distributedResults
}

// distributedResults is the content of the results file.
type distributedResults struct {
	Cores int         `json:"cores"`
	Runs  []ranksRun  `json:"runs"`
	Links []link      `json:"links"`
	Load  *weightLoad `json:"weights_to_a_server,omitempty"`
}

// ranksRun is a run with several ranks. Seconds and bytes are means per step and rank; CPU time is the total of all ranks.
type ranksRun struct {
	Setting   string  `json:"setting"`
	Ranks     int     `json:"ranks"`
	Seed      int     `json:"seed"`
	Step      float64 `json:"step_s"`
	Exchange  float64 `json:"exchange_s"` // part of the step, including waiting for other ranks
	CPU       float64 `json:"cpu_s"`      // of all ranks
	Exchanges float64 `json:"exchanges"`
	Sent      float64 `json:"sent_bytes"`
	Gradients float64 `json:"gradient_bytes"`
	Trained   float64 `json:"trained_parameters"`
	Tokens    float64 `json:"tokens"` // trained on per step, by all ranks
}

// distributedSettings are the training settings. BASE is the folder of a model.
var distributedSettings = []struct{ name, stage, options string }{
	{"imitation, all weights", "sum_digits_supervised", "--mode supervised --tiny-layers 4 --tiny-hidden 256 --batch-size 32 --max-steps 12 --warmup-check-every 0"},
	{"GRPO, adapter of rank 16", "sum_digits_rl", "--mode rl_only --algorithm grpo --model BASE --tuning lora --lora-r 16 --num-steps 8 --prompts-per-step 16 --samples-per-prompt 8 --max-new-tokens 48 --reward expr:length --eval-every 8 --fresh-samples 0"},
}

const distributedAll = "--task sum_digits --threads 1 --logging-steps 1 --eval-samples 4 --keep-completions 0 --dist-timeout 120 "

// coldSteps are excluded from means, because they fill caches and connections.
const coldSteps = 2

func (e *distributedExperiment) run(ctx context.Context) error {
	if err := files.LoadJSON(e.out, &e.results); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	e.results.Cores = runtime.NumCPU()
	for _, seed := range e.eachSeed() {
		for _, s := range distributedSettings {
			for _, ranks := range []int{1, 2, 4} {
				if slices.ContainsFunc(e.results.Runs, func(r ranksRun) bool { return r.Setting == s.name && r.Ranks == ranks && r.Seed == seed }) {
					continue
				}
				r, err := e.train(ctx, s.stage, s.options, ranks, seed)
				if err != nil {
					return fmt.Errorf("%s, %d ranks, seed %d: %w", s.name, ranks, seed, err)
				}
				r.Setting = s.name
				fmt.Printf("%+v\n", r)
				e.results.Runs = append(e.results.Runs, r)
				if err := save(e.out, e.results); err != nil {
					return err
				}
			}
		}
	}
	if len(e.results.Links) == 0 {
		links, err := measureLinks(ctx)
		if err != nil {
			return err
		}
		e.results.Links = links
	}
	if e.results.Load == nil {
		load, err := e.measureLoad(ctx)
		if err != nil {
			return err
		}
		e.results.Load = load
	}
	return save(e.out, e.results)
}

// base is the initial model for RL: that of the first run.
func (e *distributedExperiment) base() string {
	return filepath.Join(e.work, fmt.Sprintf("%s-1-%d", distributedSettings[0].stage, e.first), distributedSettings[0].stage)
}

// train runs rltrain once for each rank.
func (e *distributedExperiment) train(ctx context.Context, stage, options string, ranks, seed int) (ranksRun, error) {
	r := ranksRun{Ranks: ranks, Seed: seed}
	out := filepath.Join(e.work, fmt.Sprintf("%s-%d-%d", stage, ranks, seed))
	if err := os.RemoveAll(out); err != nil {
		return r, err
	}
	port, err := freePort()
	if err != nil {
		return r, err
	}
	args := append(strings.Fields(distributedAll+strings.ReplaceAll(options, "BASE", e.base())), "--seed", strconv.Itoa(seed), "--output-dir", out)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	processes, complaints := make([]*exec.Cmd, ranks), make([]bytes.Buffer, ranks)
	for rank := range processes {
		p := exec.CommandContext(ctx, e.program, args...)
		p.Env = append(os.Environ(), "OMP_NUM_THREADS=1")
		if ranks > 1 {
			p.Env = append(p.Env, fmt.Sprint("RANK=", rank), fmt.Sprint("WORLD_SIZE=", ranks), "MASTER_ADDR=127.0.0.1", fmt.Sprint("MASTER_PORT=", port))
		}
		p.Stderr = &complaints[rank]
		if err := p.Start(); err != nil {
			return r, err
		}
		processes[rank] = p
	}
	cpu := 0.0
	for rank, p := range processes {
		if err := p.Wait(); err != nil {
			return r, fmt.Errorf("rank %d: %w: %s", rank, err, strings.TrimSpace(complaints[rank].String()))
		}
		cpu += (p.ProcessState.UserTime() + p.ProcessState.SystemTime()).Seconds()
	}
	return r, r.read(filepath.Join(out, stage), cpu)
}

// trainable matches the number of trained parameters in a run's output.
var trainable = regexp.MustCompile(`trainable +([0-9,]+) of `)

// read computes the means over the steps of a run.
func (r *ranksRun) read(dir string, cpu float64) error {
	log, err := os.ReadFile(filepath.Join(dir, "logs", "training_log.txt"))
	if err != nil {
		return err
	}
	trained := trainable.FindSubmatch(log)
	if trained == nil {
		return fmt.Errorf("%s does not say how many parameters are trained", dir)
	}
	if r.Trained, err = strconv.ParseFloat(strings.ReplaceAll(string(trained[1]), ",", ""), 64); err != nil {
		return err
	}
	rows, err := report.ReadMetrics(filepath.Join(dir, "logs", "metrics.jsonl"))
	if err != nil {
		return err
	}
	steps := updatesIn(rows)
	sums, n, before, last := map[string]float64{}, 0.0, 0.0, 0.0
	for _, row := range rows {
		step, ok := row["step"].(float64)
		_, timed := row["time/step"]
		tokens, _ := row["num_tokens"].(float64)
		switch {
		case !ok || !timed:
			continue
		case step <= coldSteps:
			before = tokens
			continue
		}
		n, last = n+1, tokens
		for name, value := range row {
			if v, ok := value.(float64); ok {
				sums[name] += v
			}
		}
	}
	if n == 0 {
		return fmt.Errorf("%s has no step beyond %d", dir, coldSteps)
	}
	r.Step, r.Exchange = sums["time/step"]/n, sums["time/exchange"]/n
	r.Exchanges, r.Sent, r.Gradients = sums["dist/exchanges"]/n, sums["time/sent_bytes"]/n, sums["dist/gradient_bytes"]/n
	r.Tokens, r.CPU = (last-before)/n, cpu/float64(steps)
	return nil
}

func freePort() (int, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port, nil
}

// measureLoad times how long a server takes to load an existing adapter.
func (e *distributedExperiment) measureLoad(ctx context.Context) (*weightLoad, error) {
	stage := distributedSettings[1].stage
	adapter, err := filepath.Abs(filepath.Join(e.work, fmt.Sprintf("%s-1-%d", stage, e.first), stage))
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(filepath.Join(adapter, "adapter_model.safetensors"))
	if err != nil {
		return nil, err
	}
	server, err := startServer(ctx, e.program, "--model", e.base(), "--adapter-dir", filepath.Dir(adapter), "--threads", "1")
	if err != nil {
		return nil, err
	}
	defer server.stop()
	load := &weightLoad{Bytes: float64(info.Size())}
	for i := range 21 {
		name := fmt.Sprint("a", i)
		spent, err := server.post(ctx, "/v1/load_lora_adapter", map[string]string{"lora_name": name, "lora_path": adapter})
		if err != nil {
			return nil, err
		}
		if i > 0 { // the first load is cold
			load.Seconds = append(load.Seconds, spent)
		}
		if _, err := server.post(ctx, "/v1/unload_lora_adapter", map[string]string{"lora_name": name}); err != nil {
			return nil, err
		}
	}
	return load, nil
}
