package doctor

import (
	"fmt"
	"strings"

	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/torch"
)

// describeDevices lists the devices, why there is no GPU, and the implementation of each operator.
func describeDevices(s *shared.Sheet) {
	s.Head("Devices")
	capability, err := torch.CPUCapability()
	if err != nil {
		s.Row("cpu", "unavailable: %v", err)
		return
	}
	s.Row("cpu", "%s, %d threads: rltrain's own kernels, matrix products by oneDNN", capability, torch.Threads())
	describeKernels(s)
	describeGPUs(s)
	s.Head("Operators")
	rows := make([][]string, len(paths))
	for i, p := range paths {
		rows[i] = []string{p.what, p.cpu, p.gpu}
	}
	s.Block(report.RenderTable([]string{"operator", "CPU", "GPU"}, rows))
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
		s.Row("cuda", "unavailable: %v", err)
		return
	}
	for i, gpu := range gpus {
		s.Row(fmt.Sprintf("cuda:%d", i), "%s, %.1f GiB, compute capability %d.%d", gpu.Name, float64(gpu.Memory)/(1<<30), gpu.Major, gpu.Minor)
	}
}

// path names the implementation of an operator on each device; gradients use the same one.
type path struct{ what, cpu, gpu string }

var paths = []path{
	{"linear, lora_linear", "oneDNN and rltrain", "libtorch GEMM in the weight's dtype"},
	{"quantize, dequantize", "rltrain", "none: quantized weights need --device cpu"},
	{"hash_dropout", "rltrain", "rltrain, same masks"},
	{"varlen_attention", "rltrain, tiled", "libtorch: flash (16 bits), memory-efficient (fp32), else GEMM"},
	{"rms_norm, add_layer_norm", "rltrain", "rltrain"},
	{"rope, gated_act", "rltrain", "rltrain"},
	{"segment_mean", "rltrain", "rltrain"},
	{"select_rows", "libtorch", "libtorch, deterministic gradients"},
	{"token_logprobs", "rltrain, tiled", "libtorch GEMM and rltrain, chunked by rows"},
	{"AdamW", "libtorch, fused", "libtorch, fused"},
	{"generation", "rltrain's engine", "rltrain's engine: paged KV cache, CUDA graphs, sampling on the GPU"},
}
