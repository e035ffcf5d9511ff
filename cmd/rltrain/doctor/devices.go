package doctor

import (
	"fmt"

	"rltrain/cmd/rltrain/shared"
	"rltrain/torch"
)

// describeDevices says what tensors can live on, why not on a GPU, and what each device computes with.
func describeDevices(s *shared.Sheet) {
	s.Head("Devices")
	capability, err := torch.CPUCapability()
	if err != nil {
		s.Row("cpu", "does not work: %v", err)
		return
	}
	s.Row("cpu", "%s, %d threads: rltrain's own kernels, matrix products by oneDNN", capability, torch.Threads())
	gpus, err := torch.GPUs()
	if err != nil {
		s.Row("cuda", "does not work: %v", err)
		return
	}
	for i, gpu := range gpus {
		s.Row(fmt.Sprintf("cuda:%d", i), "%s, %.1f GiB, compute capability %d.%d", gpu.Name, float64(gpu.Memory)/(1<<30), gpu.Major, gpu.Minor)
	}
	s.Row("on a GPU", "training by libtorch's operators in fp32; tokens are generated on the CPU, by a copy of the weights")
}
