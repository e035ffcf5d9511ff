package bench

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/rltrain/rltrain/torch"
)

const (
	copiedBytes = 1 << 30
	productRows = 8192 // 2048 on a CPU
	inARow      = 8    // copies or products per repetition; one is too short to time
)

// deviceBench is the case device: the peak performance of the device, for comparison with other cases.
type deviceBench struct{}

func (*deviceBench) run(ctx context.Context, reps int) (*result, error) {
	device, err := torch.DeviceInUse()
	if err != nil {
		return nil, err
	}
	rows := productRows
	if device == "cpu" {
		rows = 2048
	}
	return measureDevice(ctx, reps, copiedBytes, rows)
}

// measureDevice copies bytes, sums them and multiplies square matrices with the given rows. Times and memory are those of
// the products.
func measureDevice(ctx context.Context, reps, bytes, rows int) (*result, error) {
	rng := rand.New(rand.NewPCG(1, 0))
	source, err := uniform(rng, bytes/4)
	if err != nil {
		return nil, err
	}
	defer source.Close()
	copying, err := bestOf(ctx, repeatedly(func(*torch.Scope) error {
		copied, err := source.To(torch.F32)
		torch.CloseAll(copied)
		return err
	}), reps)
	if err != nil {
		return nil, err
	}
	reading, err := bestOf(ctx, repeatedly(func(s *torch.Scope) error {
		s.Sum(source.T())
		return nil
	}), reps)
	if err != nil {
		return nil, err
	}
	kernels, err := torch.CPUKernels()
	if err != nil {
		return nil, err
	}
	a, err := bf16(rng, rows)
	if err != nil {
		return nil, err
	}
	defer a.Close()
	b, err := bf16(rng, rows)
	if err != nil {
		return nil, err
	}
	defer b.Close()
	f, err := measureStep(ctx, repeatedly(func(s *torch.Scope) error {
		s.MatMul(a.T(), b.T())
		return nil
	}), reps, "bf16")
	if err != nil {
		return nil, err
	}
	flops := inARow * 2 * math.Pow(float64(rows), 3) / f.Best / 1e12
	copied, read := inARow*2*float64(bytes)/copying.Best/1e9, inARow*float64(bytes)/reading.Best/1e9
	r := &result{
		figures: f,
		more: map[string]any{
			"copy_gb_s":     copied,         // 1e9 bytes read and written per second
			"read_gb_s":     read,           // 1e9 bytes read per second, by a sum
			"tflop_s":       flops,          // of a square bf16 matrix product in libtorch
			"product":       rows,           // of the matrices
			"kernel_speeds": kernels.Speeds, // of the CPU kernels on one thread, with data in cache
		},
		about:  f.Device,
		before: []string{fmt.Sprintf("copy\t%.1f GB/s read and written", copied), fmt.Sprintf("read\t%.1f GB/s", read)},
		after:  []string{fmt.Sprintf("product\t%.2f TFLOP/s, bf16, %d × %d × %d", flops, rows, rows, rows)},
	}
	for _, k := range kernels.Speeds {
		r.before = append(r.before, fmt.Sprintf("kernels %s\t%.0f GFLOP/s of one thread in fp32, %.0f with bf16 weights", k.Set, k.F32, k.BF16))
	}
	return r, nil
}

// repeatedly calls do inARow times, each in a new scope.
func repeatedly(do func(s *torch.Scope) error) func() error {
	return func() error {
		for range inARow {
			if err := torch.Do(torch.NoGrad, do); err != nil {
				return err
			}
		}
		return nil
	}
}

// uniform returns n random numbers in [-1, 1). Zeros would be faster than real data.
func uniform(rng *rand.Rand, n int) (*torch.Var, error) {
	values := make([]float32, n)
	for i := range values {
		values[i] = 2*rng.Float32() - 1
	}
	return torch.Constant(values, int64(n))
}

// bf16 returns a random square matrix.
func bf16(rng *rand.Rand, rows int) (v *torch.Var, err error) {
	wide, err := uniform(rng, rows*rows)
	if err != nil {
		return nil, err
	}
	defer wide.Close()
	narrow, err := wide.To(torch.BF16)
	if err != nil {
		return nil, err
	}
	defer narrow.Close()
	err = torch.Do(torch.NoGrad, func(s *torch.Scope) error {
		v = s.Keep(s.View(narrow.T(), int64(rows), int64(rows)))
		return nil
	})
	return v, err
}
