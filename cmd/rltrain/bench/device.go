package bench

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"text/tabwriter"

	"github.com/rltrain/rltrain/torch"
)

// deviceResult is the peak performance of the device, for comparison with other cases.
type deviceResult struct {
	Case      string  `json:"case"`
	CopyGBPS  float64 `json:"copy_gb_s"` // 1e9 bytes read and written per second
	ReadGBPS  float64 `json:"read_gb_s"` // 1e9 bytes read per second, by a sum
	ProductTF float64 `json:"tflop_s"`   // of a square bf16 matrix product in libtorch
	Product   int     `json:"product"`   // rows of the matrices
	// Speeds are those of the CPU kernels on one thread, with data in cache.
	Speeds []torch.KernelSpeed `json:"kernel_speeds"`
	benchFigures
}

const (
	copiedBytes = 1 << 30
	productRows = 8192 // 2048 on a CPU
	inARow      = 8    // copies or products per repetition; one is too short to time
)

func deviceBenchCase() benchCase {
	return benchCase{
		name:  "device",
		usage: "peak performance of the device: a large copy, a large read and a large bf16 matrix product; of a CPU also its kernels",
		run: func(ctx context.Context, common benchFlags) (benchTable, error) {
			device, err := torch.DeviceInUse()
			if err != nil {
				return nil, err
			}
			rows := productRows
			if device == "cpu" {
				rows = 2048
			}
			return deviceBench(ctx, common.reps, copiedBytes, rows)
		},
	}
}

// deviceBench copies bytes, sums them and multiplies square matrices with the given rows. Times and memory are those of
// the products.
func deviceBench(ctx context.Context, reps, bytes, rows int) (result deviceResult, err error) {
	rng := rand.New(rand.NewPCG(1, 0))
	source, err := uniform(rng, bytes/4)
	if err != nil {
		return result, err
	}
	defer source.Close()
	copying, err := bestOf(ctx, repeatedly(func(*torch.Scope) error {
		copied, err := source.To(torch.F32)
		torch.CloseAll(copied)
		return err
	}), reps)
	if err != nil {
		return result, err
	}
	reading, err := bestOf(ctx, repeatedly(func(s *torch.Scope) error {
		s.Sum(source.T())
		return nil
	}), reps)
	if err != nil {
		return result, err
	}
	kernels, err := torch.CPUKernels()
	if err != nil {
		return result, err
	}
	a, err := bf16(rng, rows)
	if err != nil {
		return result, err
	}
	defer a.Close()
	b, err := bf16(rng, rows)
	if err != nil {
		return result, err
	}
	defer b.Close()
	figures, err := measureStep(ctx, repeatedly(func(s *torch.Scope) error {
		s.MatMul(a.T(), b.T())
		return nil
	}), reps, "bf16")
	if err != nil {
		return result, err
	}
	flops := 2 * float64(rows) * float64(rows) * float64(rows)
	return deviceResult{
		Case: "device", CopyGBPS: inARow * 2 * float64(bytes) / copying.best / 1e9,
		ReadGBPS: inARow * float64(bytes) / reading.best / 1e9, Speeds: kernels.Speeds, ProductTF: inARow * flops / figures.Best / 1e12, Product: rows,
		benchFigures: figures,
	}, nil
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

func (r deviceResult) table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "case\t%s, %s, %d threads, %s\n", r.Case, r.Device, r.Threads, r.CPU)
	fmt.Fprintf(t, "copy\t%.1f GB/s read and written\n", r.CopyGBPS)
	fmt.Fprintf(t, "read\t%.1f GB/s\n", r.ReadGBPS)
	for _, k := range r.Speeds {
		fmt.Fprintf(t, "kernels %s\t%.0f GFLOP/s of one thread in fp32, %.0f with bf16 weights\n", k.Set, k.F32, k.BF16)
	}
	fmt.Fprintf(t, "product\t%.2f TFLOP/s, bf16, %d × %d × %d\n", r.ProductTF, r.Product, r.Product, r.Product)
	return t.Flush()
}
