package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"rltrain/rl/algo"
	"rltrain/torch"
	"rltrain/torch/transformers"
)

// classifierBench is what `rltrain bench classifier_step` repeats.
type classifierBench struct {
	mode                           string
	batch, seq, r, classes, epochs int
	mixed                          bool
	reps, threads                  int
}

// benchResult is one line of JSON: the figure names that other benchmarks of this step use.
type benchResult struct {
	Case        string            `json:"case"`
	Mode        string            `json:"mode"`
	Batch       int               `json:"batch"`
	Seq         int               `json:"seq"`
	Mixed       bool              `json:"mixed"`
	R           int               `json:"r"`
	Epochs      int               `json:"epochs"` // updates of one rollout; 1 outside of ppo
	DType       string            `json:"dtype"`
	Threads     int               `json:"threads"`
	Tokens      int               `json:"tokens"` // of the batch, without padding
	Best        float64           `json:"best_s"`
	Median      float64           `json:"median_s"`
	Reps        int               `json:"reps"`
	CleanReps   int               `json:"clean_reps"` // undisturbed by other processes
	SamplesPerS float64           `json:"samples_per_s"`
	PeakRSS     float64           `json:"peak_rss_mb"`   // MiB
	StepExtra   float64           `json:"step_extra_mb"` // peak above what was resident before, MiB
	CPU         string            `json:"cpu_capability"`
	Load        float64           `json:"load1"`
	Versions    map[string]string `json:"versions"`
}

func benchCommand() *cli.Command {
	var b classifierBench
	return &cli.Command{
		Name:  "bench",
		Usage: "measure the speed and memory of training and generation on this machine",
		Subcommands: []*cli.Command{{
			Name:  "classifier_step",
			Usage: "a step of a label classifier: encoder of BERT-base's shape, random weights, adapters on query and value",
			Flags: []cli.Flag{
				&cli.StringFlag{Name: "mode", Value: "sft", Usage: "sft, ppo (a rollout and updates on it) or infer", Destination: &b.mode},
				&cli.IntFlag{Name: "batch", Value: 8, Usage: "sequences", Destination: &b.batch},
				&cli.IntFlag{Name: "seq", Value: 32, Usage: "tokens of the longest sequence, at most 512", Destination: &b.seq},
				&cli.IntFlag{Name: "r", Value: 8, Usage: "rank of the adapters", Destination: &b.r},
				&cli.IntFlag{Name: "classes", Value: 14, Usage: "labels", Destination: &b.classes},
				&cli.IntFlag{Name: "epochs", Value: 4, Usage: "updates of one rollout", Destination: &b.epochs},
				&cli.BoolFlag{Name: "mixed", Usage: "lengths spread from 8 to --seq", Destination: &b.mixed},
				&cli.BoolFlag{Name: "autocast", Usage: "not implemented: computation is in fp32"},
				&cli.IntFlag{Name: "reps", Value: 3, Usage: "undisturbed repetitions at least", Destination: &b.reps},
				&cli.IntFlag{Name: "threads", Value: 2, Usage: "threads that compute", Destination: &b.threads},
				&cli.BoolFlag{Name: "json", Usage: "print one line of JSON"},
			},
			Action: func(c *cli.Context) error {
				if c.Args().Present() {
					return fmt.Errorf("bench classifier_step: stray argument %q", c.Args().First())
				}
				if c.Bool("autocast") {
					return errors.New("bench classifier_step: --autocast is not implemented, computation is in fp32; leave it out")
				}
				result, err := b.run(c.Context)
				if err != nil {
					return fmt.Errorf("bench classifier_step: %w", err)
				}
				if c.Bool("json") {
					return json.NewEncoder(c.App.Writer).Encode(result)
				}
				return result.table(c.App.Writer)
			},
		}, generateBenchCommand()},
	}
}

func (b classifierBench) check() error {
	for _, n := range []struct {
		flag            string
		value, low, top int
	}{
		{"batch", b.batch, 1, 1 << 16}, {"seq", b.seq, 1, bertBase.MaxPositionEmbeddings}, {"r", b.r, 1, bertBase.HiddenSize},
		{"classes", b.classes, 2, 1 << 16}, {"epochs", b.epochs, 1, 1 << 16}, {"reps", b.reps, 1, 1 << 16},
		{"threads", b.threads, 1, 1 << 10},
	} {
		if n.value < n.low || n.value > n.top {
			return fmt.Errorf("--%s %d is outside of %d to %d", n.flag, n.value, n.low, n.top)
		}
	}
	if b.mixed && b.seq < shortest {
		return fmt.Errorf("--seq %d is below %d, the shortest length of --mixed", b.seq, shortest)
	}
	if !slices.Contains([]string{"sft", "ppo", "infer"}, b.mode) {
		return fmt.Errorf("--mode %.40q is not sft, ppo or infer", b.mode)
	}
	return nil
}

var bertBase = &transformers.Config{
	ModelType: "bert", VocabSize: 30522, HiddenSize: 768, NumHiddenLayers: 12, NumAttentionHeads: 12, IntermediateSize: 3072,
	HiddenAct: "gelu", LayerNormEps: 1e-12, MaxPositionEmbeddings: 512, TypeVocabSize: 2,
}

const (
	shortest             = 8 // tokens of a sequence of --mixed
	firstToken, endToken = 1000, 30000
)

// examples draws token ids and labels. The lengths of --mixed are spread evenly from the shortest to --seq, so
// their sum is what drawing them uniformly gives on average.
func (b classifierBench) examples() (e algo.Examples, tokens int) {
	rng := rand.New(rand.NewPCG(5, 0))
	for _, n := range rng.Perm(b.batch) {
		length := b.seq
		if b.mixed && b.batch > 1 {
			length = shortest + n*(b.seq-shortest)/(b.batch-1)
		}
		ids := make([]int32, length)
		for i := range ids {
			ids[i] = int32(firstToken + rng.IntN(endToken-firstToken))
		}
		e.IDs, e.Labels = append(e.IDs, ids), append(e.Labels, rng.IntN(b.classes))
		tokens += length
	}
	return e, tokens
}

func (b classifierBench) run(ctx context.Context) (result benchResult, err error) {
	if err := b.check(); err != nil {
		return result, err
	}
	if err := torch.Open(b.threads); err != nil {
		return result, err
	}
	thread := torch.NewThread()
	defer thread.Close()
	err = thread.Do(ctx, func(ctx context.Context) error {
		result, err = b.measure(ctx)
		return err
	})
	return result, err
}

func (b classifierBench) measure(ctx context.Context) (result benchResult, err error) {
	labels := make([]string, b.classes)
	for i := range labels {
		labels[i] = strconv.Itoa(i)
	}
	policy, err := algo.RandomLabelPolicy(bertBase, algo.PolicyConfig{
		BaseModel: "random", Labels: labels, Pooling: transformers.PoolMean, R: b.r, Alpha: 2 * float64(b.r),
		Targets: []string{"query", "value"}, Seed: 1,
	})
	if err != nil {
		return result, err
	}
	defer policy.Close()
	examples, tokens := b.examples()
	step, end := func() error { _, err := policy.Probs(ctx, examples.IDs); return err }, func() {}
	switch b.mode {
	case "sft":
		step, end, err = algo.BenchSFT(policy, examples)
	case "ppo":
		step, end, err = algo.BenchPPO(policy, examples, b.epochs)
	}
	if err != nil {
		return result, err
	}
	defer end()

	debug.FreeOSMemory() // the weights' drafts, which are no part of the step
	before, err := memoryStatus("VmRSS")
	if err != nil {
		return result, err
	}
	// Where the system forbids it, the peak is that of the whole run.
	_ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0)
	t, err := bestOf(ctx, step, b.reps)
	if err != nil {
		return result, err
	}
	peak, err := memoryStatus("VmHWM")
	if err != nil {
		return result, err
	}
	capability, err := torch.CPUCapability()
	if err != nil {
		return result, err
	}
	load, err := loadAverage()
	if err != nil {
		return result, err
	}
	result = benchResult{
		Case: "classifier_step", Mode: b.mode, Batch: b.batch, Seq: b.seq, Mixed: b.mixed, R: b.r, Epochs: 1, DType: "fp32",
		Threads: torch.Threads(), Tokens: tokens, Best: t.best, Median: t.median, Reps: t.reps, CleanReps: t.clean,
		SamplesPerS: float64(b.batch) / t.best, PeakRSS: peak, StepExtra: peak - before, CPU: capability, Load: load,
		Versions: map[string]string{"libtorch": torch.LibtorchVersion, "go": strings.TrimPrefix(runtime.Version(), "go")},
	}
	if b.mode == "ppo" {
		result.Epochs = b.epochs
	}
	return result, nil
}

func (r benchResult) table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "case\t%s, %s, r %d, %s, %d threads, %s\n", r.Case, r.Mode, r.R, r.DType, r.Threads, r.CPU)
	fmt.Fprintf(t, "batch\t%d sequences, %d tokens\n", r.Batch, r.Tokens)
	fmt.Fprintf(t, "best\t%.4f s\t%.1f samples/s\n", r.Best, r.SamplesPerS)
	fmt.Fprintf(t, "median\t%.4f s\t%d repetitions, %d undisturbed\n", r.Median, r.Reps, r.CleanReps)
	fmt.Fprintf(t, "memory\t%.0f MiB at most\t%.0f MiB by the step\n", r.PeakRSS, r.StepExtra)
	return t.Flush()
}

// timing is the outcome of bestOf, in seconds.
type timing struct {
	best, median float64
	reps, clean  int
}

// bestOf times step after one warm-up, at least reps times and a second in all. Repetitions in which other
// processes used more than a tenth of a CPU do not count towards reps, up to four times as many repetitions
// and two minutes; short ones always count, the clock of the system's CPU time being too coarse for them.
// A long warm-up counts as a repetition.
func bestOf(ctx context.Context, step func() error, reps int) (timing, error) {
	const quiet, short, longWarmUp, least, most, atLeast, enough = 0.1, 0.2, 3.0, 1.0, 120.0, 8, 30
	var times []float64
	clean, start := 0, time.Now()
	if err := step(); err != nil {
		return timing{}, err
	}
	if warmUp := time.Since(start).Seconds(); warmUp > longWarmUp {
		times, clean = append(times, warmUp), 1
	}
	for {
		if err := ctx.Err(); err != nil {
			return timing{}, err
		}
		before, err := othersBusy()
		if err != nil {
			return timing{}, err
		}
		began := time.Now()
		if err := step(); err != nil {
			return timing{}, err
		}
		elapsed := time.Since(began).Seconds()
		after, err := othersBusy()
		if err != nil {
			return timing{}, err
		}
		times = append(times, elapsed)
		if (after-before)/elapsed < quiet || elapsed < short {
			clean++
		}
		spent, n := time.Since(start).Seconds(), len(times)
		if clean >= reps && (spent >= least || n >= enough) || n >= 4*max(reps, atLeast) || spent > most && n >= reps {
			break
		}
	}
	slices.Sort(times)
	n := len(times)
	return timing{best: times[0], median: (times[(n-1)/2] + times[n/2]) / 2, reps: n, clean: clean}, nil
}
