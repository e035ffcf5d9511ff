package torch_test

import (
	"testing"

	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/torch"
)

// BenchmarkOperator measures the overhead of an operator, in ns/operator: a product of 4×4 matrices is almost no work. A
// scope of a thousand operators amortises its cost.
func BenchmarkOperator(b *testing.B) {
	const operators = 1000
	data := make([]float32, 16)
	for b.Loop() {
		must.Do(b, torch.Do(torch.NoGrad, func(s *torch.Scope) error {
			x := s.Floats(data, 4, 4)
			for range operators {
				s.Mul(x, x)
			}
			return nil
		}))
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*operators), "ns/operator")
}
