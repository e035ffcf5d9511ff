package torch_test

import (
	"fmt"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/torch"
)

// TestOutOfMemoryIsKnown requests more memory than a process can address, and causes an unrelated error.
func TestOutOfMemoryIsKnown(t *testing.T) {
	const n = 1 << 23
	err := torch.Do(torch.NoGrad, func(s *torch.Scope) error {
		values := make([]float32, n)
		s.Mul(s.Floats(values, n, 1), s.Floats(values, 1, n))
		return nil
	})
	expect.True(t, torch.OutOfMemory(fmt.Errorf("step 3: %w", err)), "%v is taken for no matter of memory", err)
	err = torch.Do(torch.NoGrad, func(s *torch.Scope) error {
		s.Mul(s.Floats(make([]float32, 2), 2), s.Floats(make([]float32, 3), 3))
		return nil
	})
	expect.True(t, err != nil && !torch.OutOfMemory(err) && !torch.OutOfMemory(nil), "%v is taken for a matter of memory", err)
	// Messages of libtorch and CUDA on a GPU.
	for _, text := range []string{
		"CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.19 GiB of which 3.06 MiB is free.",
		"CUDA error: out of memory",
		"CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
	} {
		expect.True(t, torch.OutOfMemory(&torch.Error{Call: "linear", Text: text}), "%q is taken for no matter of memory", text)
	}
}
