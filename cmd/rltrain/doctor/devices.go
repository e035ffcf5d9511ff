package doctor

import (
	"fmt"
	"strings"

	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/torch"
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
	describeKernels(s)
	describeGPUs(s)
	s.Head("What computes")
	rows := make([][]string, len(paths))
	for i, p := range paths {
		rows[i] = []string{p.what, p.cpu, p.gpu}
	}
	s.Block(report.RenderTable([]string{"operator", "on the CPU", "on a GPU"}, rows))
}

// describeKernels says which instruction set the CPU's kernels use, and how fast the others would be.
func describeKernels(s *shared.Sheet) {
	kernels, err := torch.CPUKernels()
	if err != nil {
		s.Row("kernels", "do not work: %v", err)
		return
	}
	var speeds []string
	for _, k := range kernels.Speeds {
		speeds = append(speeds, fmt.Sprintf("%s %.0f and %.0f", k.Set, k.F32, k.BF16))
	}
	s.Row("kernels", "%s; GFLOP/s of one thread in fp32 and with bf16 weights: %s", kernels.Set, strings.Join(speeds, ", "))
}

func describeGPUs(s *shared.Sheet) {
	gpus, err := torch.GPUs()
	if err != nil {
		s.Row("cuda", "does not work: %v", err)
		return
	}
	for i, gpu := range gpus {
		s.Row(fmt.Sprintf("cuda:%d", i), "%s, %.1f GiB, compute capability %d.%d", gpu.Name, float64(gpu.Memory)/(1<<30), gpu.Major, gpu.Minor)
	}
}

// path is what computes an operator on each device; gradients go the same way.
type path struct{ what, cpu, gpu string }

var paths = []path{
	{"linear, lora_linear", "oneDNN and rltrain", "libtorch's products, in the weight's type"},
	{"linear_group", "rltrain, packed weights", "layers of one input joined"},
	{"hash_dropout", "rltrain", "rltrain, the same masks"},
	{"varlen_attention", "rltrain, in tiles", "libtorch: flash in 16 bits, memory-efficient in fp32; else its products"},
	{"rms_norm, add_layer_norm", "rltrain", "rltrain"},
	{"rope, gated_act", "rltrain", "rltrain"},
	{"segment_mean", "rltrain", "rltrain"},
	{"select_rows", "libtorch", "libtorch, gradients in a fixed order"},
	{"token_logprobs", "rltrain, in tiles", "libtorch's products, then rltrain, some rows at a time"},
	{"AdamW", "libtorch's fused one", "libtorch's fused one"},
	{"generation", "rltrain's engine", "rltrain's engine: paged cache, graphs, sampling there"},
}
