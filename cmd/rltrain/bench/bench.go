package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/rl/train"
	"github.com/rltrain/rltrain/torch"
)

// A benchCase is one subcommand of `rltrain bench`.
type benchCase struct {
	name, usage string
	flags       []cli.Flag
	// run measures the case on a thread of its own, with libtorch open.
	run func(ctx context.Context, common benchFlags) (benchTable, error)
}

// benchTable is a case's outcome: encoded it is one line of JSON, with the figure names that other
// benchmarks of the case use.
type benchTable interface{ table(w io.Writer) error }

// benchFlags are the flags that all cases have.
type benchFlags struct{ reps int }

// benchFigures are those that all cases have.
type benchFigures struct {
	DType     string            `json:"dtype"`
	Device    string            `json:"device"` // "cpu", "cuda:0"
	Threads   int               `json:"threads"`
	Best      float64           `json:"best_s"`
	Median    float64           `json:"median_s"`
	Reps      int               `json:"reps"`
	CleanReps int               `json:"clean_reps"` // undisturbed by other processes
	CPUBest   float64           `json:"cpu_s"`      // of all threads and child processes, of the repetition that took least
	CPUMedian float64           `json:"cpu_median_s"`
	PeakRSS   float64           `json:"peak_rss_mb"`   // MiB
	StepExtra float64           `json:"step_extra_mb"` // peak above what was resident before, MiB
	GPU       *gpuFigures       `json:"gpu,omitempty"` // where one computes
	CPU       string            `json:"cpu_capability"`
	Load      float64           `json:"load1"`
	Versions  map[string]string `json:"versions"`
}

// gpuFigures are of the memory that libtorch's allocator hands out, MiB.
type gpuFigures struct {
	Peak     float64 `json:"peak_mb"`     // since the process began
	Extra    float64 `json:"extra_mb"`    // Peak above what was in use before the case
	Reserved float64 `json:"reserved_mb"` // taken from the GPU
}

// Command measures speed and memory.
func Command() *cli.Command {
	command := &cli.Command{Name: "bench", Usage: "measure speed and memory on this machine"}
	for _, c := range []benchCase{classifierBenchCase(), loraBenchCase(), logprobBenchCase(), generateBenchCase(), grpoBenchCase(), dpoBenchCase(), startupBenchCase(), deviceBenchCase()} {
		command.Subcommands = append(command.Subcommands, c.command())
	}
	return command
}

func (b benchCase) command() *cli.Command {
	var common benchFlags
	return &cli.Command{
		Name: b.name, Usage: b.usage,
		Flags: append(b.flags,
			&cli.IntFlag{Name: "reps", Value: 3, Usage: "undisturbed repetitions at least", Destination: &common.reps},
			&cli.IntFlag{Name: "threads", Value: 2, Usage: "threads that compute"},
			&cli.StringFlag{Name: "device", Value: "cpu", Usage: "where tensors live: cpu, cuda, cuda:NUMBER or auto"},
			&cli.BoolFlag{Name: "json", Usage: "print one line of JSON"}),
		Action: func(c *cli.Context) error {
			result, err := b.measure(c, common)
			if err != nil {
				return fmt.Errorf("bench %s: %w", b.name, err)
			}
			if c.Bool("json") {
				return json.NewEncoder(c.App.Writer).Encode(result)
			}
			return result.table(c.App.Writer)
		},
	}
}

func (b benchCase) measure(c *cli.Context, common benchFlags) (result benchTable, err error) {
	if c.Args().Present() {
		return nil, fmt.Errorf("stray argument %q", c.Args().First())
	}
	if err := checkBounds(bound{"reps", common.reps, 1, 1 << 16}, bound{"threads", c.Int("threads"), 1, 1 << 10}); err != nil {
		return nil, err
	}
	err = shared.OnThread(c, func(ctx context.Context) error {
		result, err = b.run(ctx, common)
		return err
	})
	return result, err
}

// bound is a flag's value and the range it must be in.
type bound struct {
	flag            string
	value, low, top int
}

func checkBounds(bounds ...bound) error {
	for _, n := range bounds {
		if n.value < n.low || n.value > n.top {
			return fmt.Errorf("--%s %d is outside of %d to %d", n.flag, n.value, n.low, n.top)
		}
	}
	return nil
}

// measureStep repeats step and gathers what all cases report, for computation in dtype.
func measureStep(ctx context.Context, step func() error, reps int, dtype string) (f benchFigures, err error) {
	debug.FreeOSMemory() // the weights' drafts, which are no part of the step
	before, err := memoryStatus("self", "VmRSS")
	if err != nil {
		return f, err
	}
	gpuBefore, err := torch.MemoryOfGPU()
	if err != nil {
		return f, err
	}
	// Where the system forbids it, the peak is that of the whole run.
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

// gather adds to the times and the memory what all cases report.
func gather(t timing, dtype string, peak, extra float64) (benchFigures, error) {
	capability, err := torch.CPUCapability()
	if err != nil {
		return benchFigures{}, err
	}
	device, err := torch.DeviceInUse()
	if err != nil {
		return benchFigures{}, err
	}
	load, err := loadAverage()
	if err != nil {
		return benchFigures{}, err
	}
	return benchFigures{
		DType: dtype, Device: device, Threads: torch.Threads(), Best: t.best, Median: t.median, Reps: t.reps, CleanReps: t.clean, CPUBest: t.cpu, CPUMedian: t.cpuMedian,
		PeakRSS: peak, StepExtra: extra, CPU: capability, Load: load,
		Versions: map[string]string{"libtorch": torch.LibtorchVersion, "go": strings.TrimPrefix(runtime.Version(), "go")},
	}, nil
}

// times prints the figures that all cases have; speed is that of the best repetition.
func (f benchFigures) times(w io.Writer, speed string) {
	fmt.Fprintf(w, "best\t%.4f s\t%s\n", f.Best, speed)
	fmt.Fprintf(w, "median\t%.4f s\t%d repetitions, %d undisturbed\n", f.Median, f.Reps, f.CleanReps)
	fmt.Fprintf(w, "memory\t%.0f MiB at most\t%.0f MiB by the step\n", f.PeakRSS, f.StepExtra)
	if f.GPU != nil {
		fmt.Fprintf(w, "of the GPU\t%.0f MiB at most\t%.0f MiB by the step, %.0f MiB reserved\n", f.GPU.Peak, f.GPU.Extra, f.GPU.Reserved)
	}
}

// benchRate is the learning rate of repeated updates: it only has to keep the numbers ordinary.
const benchRate = 1e-4

// training is how a step of training is repeated, without end.
func training(c train.Config) train.Config {
	c.Steps = math.MaxInt32
	c.Optimisation = train.Optimisation{LearningRate: benchRate, Schedule: "constant", MaxGradNorm: 1}
	return c
}

// timing is the outcome of bestOf, in seconds.
type timing struct {
	best, median   float64
	cpu, cpuMedian float64
	reps, clean    int
}

// bestOf times step after one warm-up, at least reps times and a second in all. Repetitions in which other
// processes used more than a tenth of a CPU do not count towards reps, up to four times as many repetitions
// and two minutes; short ones always count, the clock of the system's CPU time being too coarse for them.
// A long warm-up counts as a repetition. A repetition ends when the device has done all of it.
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
	return timing{best: times[0], median: median(times), cpu: cpus[0], cpuMedian: median(cpus), reps: len(times), clean: clean}, nil
}

// median is that of sorted numbers.
func median(sorted []float64) float64 {
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}
