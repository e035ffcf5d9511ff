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

// benchCase is a subcommand of rltrain bench.
type benchCase struct {
	name, usage string
	flags       []cli.Flag
	// run measures the case on the compute thread.
	run func(ctx context.Context, common benchFlags) (benchTable, error)
}

// benchTable is the result of a case. Its JSON is one line.
type benchTable interface{ table(w io.Writer) error }

// benchFlags are the flags of all cases.
type benchFlags struct{ reps int }

// benchFigures are the metrics of all cases.
type benchFigures struct {
	DType     string            `json:"dtype"`
	Device    string            `json:"device"` // "cpu", "cuda:0"
	Threads   int               `json:"threads"`
	Best      float64           `json:"best_s"`
	Median    float64           `json:"median_s"`
	Reps      int               `json:"reps"`
	CleanReps int               `json:"clean_reps"` // not disturbed by other processes
	CPUBest   float64           `json:"cpu_s"`      // CPU time of all threads and child processes, best repetition
	CPUMedian float64           `json:"cpu_median_s"`
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

// Command returns the command bench.
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
			&cli.IntFlag{Name: "reps", Value: 3, Usage: "minimum number of undisturbed repetitions", Destination: &common.reps},
			&cli.IntFlag{Name: "threads", Value: 2, Usage: "compute threads"},
			&cli.StringFlag{Name: "device", Value: "cpu", Usage: "cpu, cuda, cuda:N or auto"},
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
		return nil, fmt.Errorf("unexpected argument %q", c.Args().First())
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

// bound is the value of a flag and its range.
type bound struct {
	flag            string
	value, low, top int
}

func checkBounds(bounds ...bound) error {
	for _, n := range bounds {
		if n.value < n.low || n.value > n.top {
			return fmt.Errorf("--%s: %d is out of range; it must be %d to %d", n.flag, n.value, n.low, n.top)
		}
	}
	return nil
}

// measureStep repeats step and returns the metrics of all cases.
func measureStep(ctx context.Context, step func() error, reps int, dtype string) (f benchFigures, err error) {
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
func gather(t timing, dtype string, peak, extra float64) (benchFigures, error) {
	capability, err := torch.CPUCapability()
	if err != nil {
		return benchFigures{}, err
	}
	device, err := torch.DeviceInUse()
	if err != nil {
		return benchFigures{}, err
	}
	kernels, err := torch.CPUKernels()
	if err != nil {
		return benchFigures{}, err
	}
	load, err := loadAverage()
	if err != nil {
		return benchFigures{}, err
	}
	return benchFigures{
		DType: dtype, Device: device, Threads: torch.Threads(), Best: t.best, Median: t.median, Reps: t.reps, CleanReps: t.clean, CPUBest: t.cpu, CPUMedian: t.cpuMedian,
		PeakRSS: peak, StepExtra: extra, CPU: capability, Kernels: kernels.Set, Load: load,
		Versions: map[string]string{"libtorch": torch.LibtorchVersion, "go": strings.TrimPrefix(runtime.Version(), "go")},
	}, nil
}

// times prints the metrics of all cases; speed is that of the best repetition.
func (f benchFigures) times(w io.Writer, speed string) {
	fmt.Fprintf(w, "best\t%.4f s\t%s\n", f.Best, speed)
	fmt.Fprintf(w, "median\t%.4f s\t%d repetitions, %d undisturbed\n", f.Median, f.Reps, f.CleanReps)
	fmt.Fprintf(w, "peak memory\t%.0f MiB\t%.0f MiB above the start\n", f.PeakRSS, f.StepExtra)
	if f.GPU != nil {
		fmt.Fprintf(w, "GPU memory\t%.0f MiB\t%.0f MiB above the start, %.0f MiB reserved\n", f.GPU.Peak, f.GPU.Extra, f.GPU.Reserved)
	}
}

// benchRate is a learning rate that keeps values in a normal range.
const benchRate = 1e-4

// training configures endless training steps.
func training(c train.Config) train.Config {
	c.Steps = math.MaxInt32
	c.Optimisation = train.Optimisation{LearningRate: benchRate, Schedule: "constant", MaxGradNorm: 1}
	return c
}

// timing is the result of bestOf, in seconds.
type timing struct {
	best, median   float64
	cpu, cpuMedian float64
	reps, clean    int
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
	return timing{best: times[0], median: median(times), cpu: cpus[0], cpuMedian: median(cpus), reps: len(times), clean: clean}, nil
}

// median returns the median of sorted numbers.
func median(sorted []float64) float64 {
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}
