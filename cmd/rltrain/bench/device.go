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
	rows, dtype := productRows, "bf16"
	if device == "cpu" {
		kernels, err := torch.CPUKernels()
		if err != nil {
			return nil, err
		}
		rows, dtype = 2048, productType(kernels)
	}
	return measureDevice(ctx, reps, copiedBytes, rows, dtype)
}

// measureDevice copies bytes, sums them and multiplies square matrices with the given rows and dtype. Times and memory are those of
// the products.
func measureDevice(ctx context.Context, reps, bytes, rows int, dtype string) (*result, error) {
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
	a, err := square(rng, rows, dtype)
	if err != nil {
		return nil, err
	}
	defer a.Close()
	b, err := square(rng, rows, dtype)
	if err != nil {
		return nil, err
	}
	defer b.Close()
	f, err := measureStep(ctx, repeatedly(func(s *torch.Scope) error {
		s.MatMul(a.T(), b.T())
		return nil
	}), reps, dtype)
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
			"tflop_s":       flops,          // of a square matrix product in libtorch
			"product":       rows,           // of the matrices
			"kernel_speeds": kernels.Speeds, // of the CPU kernels on one thread, with data in cache
		},
		about:  f.Device,
		before: []string{fmt.Sprintf("copy\t%.1f GB/s read and written", copied), fmt.Sprintf("read\t%.1f GB/s", read)},
		after:  []string{fmt.Sprintf("product\t%.2f TFLOP/s, %s, %d × %d × %d", flops, dtype, rows, rows, rows)},
	}
	for _, k := range kernels.Speeds {
		r.before = append(r.before, fmt.Sprintf("kernels %s\t%.0f GFLOP/s of one thread in fp32, %.0f with bf16 weights", k.Set, k.F32, k.BF16))
	}
	return r, nil
}

// productType is the dtype whose product is measured. libtorch takes minutes for one of bf16 on a processor without
// instructions for it.
func productType(kernels torch.Kernels) string {
	for _, speed := range kernels.Speeds {
		if speed.Set == kernels.Set && speed.BF16 < 1.2*speed.F32 {
			return "fp32"
		}
	}
	return "bf16"
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

// square returns a random square matrix.
func square(rng *rand.Rand, rows int, dtype string) (v *torch.Var, err error) {
	wide, err := uniform(rng, rows*rows)
	if err != nil {
		return nil, err
	}
	defer wide.Close()
	narrow, err := wide.To(dtypes[dtype])
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
