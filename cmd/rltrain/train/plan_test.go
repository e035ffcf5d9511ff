package train

import (
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
)

// TestPassTokens: a plan does not promise the memory of a full micro-batch to a step that has fewer tokens.
func TestPassTokens(t *testing.T) {
	for _, test := range []struct{ micro, samples, longest, want int }{
		{16384, 64, 50, 3200},
		{4096, 8, 1024, 4096},
		{4096, 1, 8000, 8000}, // a sample is not divided
		{4096, 8, 0, 4096},    // unknown
	} {
		expect.Same(t, test.want, passTokens(test.micro, test.samples, test.longest), "%+v", test)
	}
}
