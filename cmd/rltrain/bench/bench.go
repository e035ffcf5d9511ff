package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/cmd/rltrain/config"
	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/internal/options"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/rl/train"
	"github.com/rltrain/rltrain/torch"
)

// benchCase is a subcommand of rltrain bench: a struct of its options, whose JSON is part of the result.
type benchCase interface {
	// run measures the case on the compute thread.
	run(ctx context.Context, reps int) (*result, error)
}

// result is what a case measured.
type result struct {
	figures
	more map[string]any // figures of this case, by their names in JSON
	// The table: what is measured, the lines before and after the figures of all cases, and the speed of the best repetition.
	about         string
	before, after []string
	speed         string
}

// figures are the metrics of all cases.
type figures struct {
	DType   string `json:"dtype"`
	Device  string `json:"device"` // "cpu", "cuda:0"
	Threads int    `json:"threads"`
	timing
	PeakRSS   float64           `json:"peak_rss_mb"`   // MiB
	StepExtra float64           `json:"step_extra_mb"` // peak above the resident memory before, MiB
	GPU       *gpuFigures       `json:"gpu,omitempty"` // nil on the CPU
	CPU       string            `json:"cpu_capability"`
	Kernels   string            `json:"kernels"` // the instruction set of the CPU's
	Load      float64           `json:"load1"`
	Versions  map[string]string `json:"versions"`
}

// gpuFigures describe the memory of libtorch's allocator, in MiB.
type gpuFigures struct {
	Peak     float64 `json:"peak_mb"`     // since the process started
	Extra    float64 `json:"extra_mb"`    // Peak above the memory before the case
	Reserved float64 `json:"reserved_mb"` // reserved on the GPU
}

// commonOptions are those of all cases.
type commonOptions struct {
	Reps    int    `option:"reps" default:"3" range:"[1,65536]" help:"minimum number of undisturbed repetitions"`
	Threads int    `option:"threads" default:"2" range:"[1,1024]" help:"compute threads"`
	Device  string `option:"device" default:"cpu" help:"cpu, cuda, cuda:N or auto"`
	JSON    bool   `option:"json" help:"print one line of JSON"`
}

// Command returns the command bench.
func Command() *cli.Command {
	return &cli.Command{Name: "bench", Usage: "measure speed and memory on this machine", Subcommands: []*cli.Command{
		command("classifier_step", "classifier training step: random encoder, LoRA on query and value", &classifierBench{}),
		command("lora_step", "SFT step of a language model: random Llama, LoRA on all linear layers", &loraBench{}),
		command("logprob", "log-probs of tokens from hidden states and the output weight", &logprobBench{}),
		command("generate", "generation with a random language model", &generateBench{}),
		command("grpo_step", "GRPO step: rollouts, rewards, advantages and updates; random Llama, LoRA on all linear layers", &grpoBench{}),
		command("dpo_step", "DPO step: reference log-probs, loss and update; random Llama, LoRA on all linear layers", &dpoBench{}),
		command("startup", "time from process start to the first token of a random language model", &startupBench{}),
		command("device", "peak performance of the device: a large copy, a large read and a large matrix product (in bf16 where that is fast); of a CPU also its kernels", &deviceBench{}),
	}}
}

func command(name, usage string, b benchCase) *cli.Command {
	var common commonOptions
	return &cli.Command{
		Name: name, Usage: usage, Flags: config.OptionFlags(options.MustRead(b, &common)),
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return fmt.Errorf("bench %s: unexpected argument %q", name, c.Args().First())
			}
			return shared.OnThread(c, func(ctx context.Context) error {
				r, err := b.run(ctx, common.Reps)
				switch {
				case err != nil:
					return fmt.Errorf("bench %s: %w", name, err)
				case common.JSON:
					return r.json(c.App.Writer, name, b)
				}
				return r.table(c.App.Writer, name)
			})
		},
	}
}

// json prints the options and the figures of a case as one line of JSON.
func (r *result) json(w io.Writer, name string, b benchCase) error {
	line := map[string]any{"case": name}
	for _, part := range []any{b, r.figures} {
		data, err := json.Marshal(part)
		if err != nil {
			return err
		}
		if err := json.Unmarshal(data, &line); err != nil {
			return err
		}
	}
	maps.Copy(line, r.more)
	return json.NewEncoder(w).Encode(line)
}

func (r *result) table(w io.Writer, name string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "case\t%s, %s, %s, %d threads, %s\n", name, r.about, r.DType, r.Threads, r.CPU)
	lines := r.before
	if r.speed != "" {
		lines = append(lines, fmt.Sprintf("best\t%.4f s\t%s", r.Best, r.speed),
			fmt.Sprintf("median\t%.4f s\t%d repetitions, %d undisturbed", r.Median, r.Reps, r.CleanReps),
			fmt.Sprintf("peak memory\t%.0f MiB\t%.0f MiB above the start", r.PeakRSS, r.StepExtra))
		if r.GPU != nil {
			lines = append(lines, fmt.Sprintf("GPU memory\t%.0f MiB\t%.0f MiB above the start, %.0f MiB reserved", r.GPU.Peak, r.GPU.Extra, r.GPU.Reserved))
		}
	}
	fmt.Fprintln(t, strings.Join(append(lines, r.after...), "\n"))
	return t.Flush()
}

// inRange checks an option whose range depends on others.
func inRange(name string, value, low, high int) error {
	if value < low || value > high {
		return fmt.Errorf("--%s: %d is out of range; it must be %d to %d", name, value, low, high)
	}
	return nil
}

// measureStep repeats step and returns the metrics of all cases.
func measureStep(ctx context.Context, step func() error, reps int, dtype string) (f figures, err error) {
	debug.FreeOSMemory() // temporary copies of the weights are not part of the step
	before, err := memoryStatus("self", "VmRSS")
	if err != nil {
		return f, err
	}
	gpuBefore, err := torch.MemoryOfGPU()
	if err != nil {
		return f, err
	}
	// If the system forbids the reset, the peak is that of the whole run.
	_ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0)
	t, err := bestOf(ctx, step, reps)
	if err != nil {
		return f, err
	}
	peak, err := memoryStatus("self", "VmHWM")
	if err != nil {
		return f, err
	}
	f, err = gather(t, dtype, peak, peak-before)
	if err != nil || gpuBefore == nil {
		return f, err
	}
	gpu, err := torch.MemoryOfGPU()
	if err != nil {
		return f, err
	}
	mebibytes := func(n int64) float64 { return float64(n) / (1 << 20) }
	f.GPU = &gpuFigures{Peak: mebibytes(gpu.Peak), Extra: mebibytes(gpu.Peak - gpuBefore.Allocated), Reserved: mebibytes(gpu.Reserved)}
	return f, nil
}

// gather completes the metrics of all cases from times and memory.
func gather(t timing, dtype string, peak, extra float64) (figures, error) {
	capability, err1 := torch.CPUCapability()
	device, err2 := torch.DeviceInUse()
	kernels, err3 := torch.CPUKernels()
	load, err4 := loadAverage()
	return figures{
		DType: dtype, Device: device, Threads: torch.Threads(), timing: t, PeakRSS: peak, StepExtra: extra, CPU: capability, Kernels: kernels.Set, Load: load,
		Versions: map[string]string{"libtorch": torch.LibtorchVersion, "go": strings.TrimPrefix(runtime.Version(), "go")},
	}, errors.Join(err1, err2, err3, err4)
}

// benchRate is a learning rate that keeps values in a normal range.
const benchRate = 1e-4

// newTrainer returns a trainer of endless steps.
func newTrainer(p policy.Policy, source train.Source, a algo.Algorithm, c train.Config) (*train.Trainer, error) {
	c.Steps = math.MaxInt32
	c.Optimisation = train.Optimisation{LearningRate: benchRate, Schedule: "constant", MaxGradNorm: 1}
	return train.New(p, source, a, c, run.Hooks{Now: time.Now})
}

// measureTraining measures the steps of a trainer.
func measureTraining(ctx context.Context, p policy.Policy, source train.Source, a algo.Algorithm, c train.Config, reps int, dtype string) (figures, error) {
	trainer, err := newTrainer(p, source, a, c)
	if err != nil {
		return figures{}, err
	}
	defer trainer.Close()
	return measureStep(ctx, func() error { _, err := trainer.Step(ctx); return err }, reps, dtype)
}

// timing is the result of bestOf, in seconds.
type timing struct {
	Best      float64 `json:"best_s"`
	Median    float64 `json:"median_s"`
	Reps      int     `json:"reps"`
	CleanReps int     `json:"clean_reps"` // not disturbed by other processes
	CPUBest   float64 `json:"cpu_s"`      // CPU time of all threads and child processes, best repetition
	CPUMedian float64 `json:"cpu_median_s"`
}

// bestOf times step after one warm-up, for at least reps repetitions and 1 s. Repetitions do not count if other processes
// used more than 10 % of a CPU, unless they are shorter than 0.2 s, which the system's CPU clock cannot resolve. It stops
// after four times reps, or 120 s. A warm-up above 3 s counts as a repetition. Each repetition waits for the device.
func bestOf(ctx context.Context, step func() error, reps int) (timing, error) {
	const quiet, short, longWarmUp, least, most, atLeast, enough = 0.1, 0.2, 3.0, 1.0, 120.0, 8, 30
	var times, cpus []float64
	run := step
	step = func() error {
		if err := run(); err != nil {
			return err
		}
		return torch.Wait()
	}
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
		before, used, err := busy()
		if err != nil {
			return timing{}, err
		}
		began := time.Now()
		if err := step(); err != nil {
			return timing{}, err
		}
		elapsed := time.Since(began).Seconds()
		after, usedAfter, err := busy()
		if err != nil {
			return timing{}, err
		}
		times, cpus = append(times, elapsed), append(cpus, usedAfter-used)
		if (after-before)/elapsed < quiet || elapsed < short {
			clean++
		}
		spent, n := time.Since(start).Seconds(), len(times)
		if clean >= reps && (spent >= least || n >= enough) || n >= 4*max(reps, atLeast) || spent > most && n >= reps {
			break
		}
	}
	slices.Sort(times)
	slices.Sort(cpus)
	return timing{times[0], median(times), len(times), clean, cpus[0], median(cpus)}, nil
}

// median returns the median of sorted numbers.
func median(sorted []float64) float64 {
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// memoryStatus returns a field of /proc/PROCESS/status in MiB.
func memoryStatus(process, field string) (float64, error) {
	bytes, err := run.MemoryStatus(process, field)
	return float64(bytes) / (1 << 20), err
}

// held returns the anonymous memory of this process in MiB, after releasing free memory.
func held() (float64, error) {
	torch.ReleaseMemory()
	return memoryStatus("self", "RssAnon")
}

// busy returns the CPU time used so far in seconds: by other processes, and by this one with its finished children.
func busy() (others, own float64, err error) {
	const ticksPerSecond = 100 // of /proc/stat: fixed on Linux for user space
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0, err
	}
	line, _, _ := strings.Cut(string(data), "\n")
	fields := strings.Fields(line)
	for i, text := range fields[1:min(len(fields), 9)] {
		ticks, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("/proc/stat: %w", err)
		}
		if idle := i == 3 || i == 4; !idle {
			others += ticks / ticksPerSecond
		}
	}
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var used syscall.Rusage
		if err := syscall.Getrusage(who, &used); err != nil {
			return 0, 0, fmt.Errorf("getrusage: %w", err)
		}
		own += float64(used.Utime.Nano()+used.Stime.Nano()) / 1e9
	}
	return others - own, own, nil
}

func loadAverage() (float64, error) {
	data, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(string(data), " ")
	return strconv.ParseFloat(first, 64)
}
