package libtorch

import (
	"maps"
	"runtime"

	"github.com/rltrain/rltrain/internal/wheel"
)

// Version is the only libtorch version that the core supports.
const Version = "2.11.0"

// nvidia is a wheel of NVIDIA for Linux on x86-64. kind is the middle of its name.
func nvidia(project, stem, version, kind, sha256 string, size int64) wheel.Wheel {
	return wheel.Wheel{
		Project: "nvidia-" + project, File: "nvidia_" + stem + "-" + version + "-py3-none-" + kind + "_x86_64.whl", SHA256: sha256, Size: size,
	}
}

const (
	licences = "torch-" + Version + ".dist-info/licenses/"
	// manylinux are kinds of wheels that have two names.
	manylinux2010 = "manylinux2010_x86_64.manylinux_2_12"
	manylinux2014 = "manylinux2014_x86_64.manylinux_2_17"
)

var (
	torch = wheel.Wheel{
		Project: "torch", File: "torch-" + Version + "-cp312-cp312-manylinux_2_28_x86_64.whl",
		SHA256: "0f68f4ac6d95d12e896c3b7a912b5871619542ec54d3649cf48cc1edd4dd2756", Size: 530712279,
	}
	// CUDARuntime has the library that libtorch_cpu.so needs even on machines without a GPU, and headers.
	CUDARuntime = nvidia("cuda-runtime", "cuda_runtime", "13.0.96", manylinux2014,
		"7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548", 2243632)
	cupti = nvidia("cuda-cupti", "cuda_cupti", "13.0.85", "manylinux_2_25",
		"4eb01c08e859bf924d222250d2e8f8b8ff6d3db4721288cf35d14252a4d933c8", 10715597)
)

// onProcessor are the wheels that libtorch_cpu.so needs on one kind of processor.
type onProcessor struct {
	torch, runtime, cupti wheel.Wheel
	libraries             []string // of the torch wheel, besides those of fromTorch
	bytes, headerBytes    int64
}

// processors has a key for each GOARCH that rltrain runs on.
var processors = map[string]onProcessor{
	"amd64": {torch: torch, runtime: CUDARuntime, cupti: cupti, bytes: 437e6, headerBytes: 62e6},
	"arm64": {
		torch: wheel.Wheel{
			Project: "torch", File: "torch-" + Version + "-cp312-cp312-manylinux_2_28_aarch64.whl",
			SHA256: "f99924682ef0aa6a4ab3b1b76f40dc6e273fca09f367d15a524266db100a723f", Size: 419731115,
		},
		runtime: wheel.Wheel{
			Project: "nvidia-cuda-runtime", File: "nvidia_cuda_runtime-13.0.96-py3-none-manylinux2014_aarch64.manylinux_2_17_aarch64.whl",
			SHA256: "ef9bcbe90493a2b9d810e43d249adb3d02e98dd30200d86607d8d02687c43f55", Size: 2261060,
		},
		cupti: wheel.Wheel{
			Project: "nvidia-cuda-cupti", File: "nvidia_cuda_cupti-13.0.85-py3-none-manylinux_2_25_aarch64.whl",
			SHA256: "796bd679890ee55fb14a94629b698b6db54bcfd833d391d5e94017dd9d7d3151", Size: 10310827,
		},
		libraries: []string{
			"libarm_compute.so", "libarm_compute_graph.so", "libnvpl_blas_core.so.0", "libnvpl_blas_lp64_gomp.so.0",
			"libnvpl_lapack_core.so.0", "libnvpl_lapack_lp64_gomp.so.0",
		},
		bytes: 298e6, headerBytes: 41e6,
	},
}

// fromTorch are the members of the torch wheel that programs need. The RPATH of libtorch_cpu.so ends in $ORIGIN, so that
// one flat lib folder is enough.
var fromTorch = map[string]string{
	"torch/include/" + versionHeader: "include/" + versionHeader,
	"torch/lib/libtorch_cpu.so":      "lib/libtorch_cpu.so",
	"torch/lib/libc10.so":            "lib/libc10.so",
	"torch/lib/libgomp.so.1":         "lib/libgomp.so.1",
	licences + "LICENSE":             "LICENSE",
	licences + "NOTICE":              "NOTICE",
}

// CPU returns libtorch for this machine's CPU, with the headers that building the core needs if asked for.
func CPU(headers bool) wheel.Set {
	set, _ := CPUOf(runtime.GOARCH, headers)
	return set
}

// CPUOf returns that for another kind of processor, named as GOARCH is. It is false if there is none.
func CPUOf(arch string, headers bool) (wheel.Set, bool) {
	p, ok := processors[arch]
	if !ok {
		return wheel.Set{}, false
	}
	places, needs, bytes := maps.Clone(fromTorch), "", p.bytes
	for _, name := range p.libraries {
		places["torch/lib/"+name] = "lib/" + name
	}
	if headers {
		places["torch/include/"] = "include/"
		needs, bytes = coreHeader, p.bytes+p.headerBytes
	}
	name := "libtorch-" + Version
	if arch != "amd64" {
		name += "-" + arch
	}
	return wheel.Set{
		Name: name, Bytes: bytes, Needs: needs,
		Parts: []wheel.Part{
			{Wheel: p.torch, Places: places},
			{Wheel: p.runtime, Places: map[string]string{
				"nvidia/cu13/lib/libcudart.so.13":                            "lib/libcudart.so.13",
				"nvidia_cuda_runtime-13.0.96.dist-info/licenses/License.txt": "LICENSE.cuda",
			}},
			{Wheel: p.cupti, Places: map[string]string{"nvidia/cu13/lib/libcupti.so.13": "lib/libcupti.so.13"}},
		},
	}, true
}

// ForGPUs says whether CUDA has wheels for this kind of processor.
const ForGPUs = runtime.GOARCH == "amd64"

// CUDA returns the libraries that a GPU needs besides those of CPU.
func CUDA() wheel.Set {
	s := wheel.Set{Name: "libtorch-cuda-" + Version, Bytes: 2767e6, Parts: []wheel.Part{{Wheel: torch, Places: map[string]string{
		"torch/lib/libtorch_cuda.so":    "lib/libtorch_cuda.so",
		"torch/lib/libc10_cuda.so":      "lib/libc10_cuda.so",
		"torch/lib/libtorch_nvshmem.so": "lib/libtorch_nvshmem.so",
	}}}}
	for _, of := range cudaWheels {
		s.Parts = append(s.Parts, wheel.Part{Wheel: of.Wheel, Places: map[string]string{"nvidia/" + of.folder + "/lib/": "lib/"}})
	}
	return s
}

// cudaWheels have the dependencies of libtorch_cuda.so, each in a folder of its own.
var cudaWheels = []struct {
	wheel.Wheel
	folder string
}{
	{nvidia("cublas", "cublas", "13.1.0.3", "manylinux_2_27",
		"ee8722c1f0145ab246bccb9e452153b5e0515fd094c3678df50b2a0888b8b171", 423133236), "cu13"},
	{nvidia("cudnn-cu13", "cudnn_cu13", "9.19.0.56", "manylinux_2_27",
		"d20e1734305e9d68889a96e3f35094d733ff1f83932ebe462753973e53a572bf", 366066321), "cudnn"},
	{nvidia("cufft", "cufft", "12.0.0.61", manylinux2014,
		"6c44f692dce8fd5ffd3e3df134b6cdb9c2f72d99cf40b62c32dde45eea9ddad3", 214085489), "cu13"},
	{nvidia("cufile", "cufile", "1.15.1.6", manylinux2014,
		"08a3ecefae5a01c7f5117351c64f17c7c62efa5fffdbe24fc7d298da19cd0b44", 1223672), "cu13"},
	{nvidia("curand", "curand", "10.4.0.35", "manylinux_2_27",
		"1aee33a5da6e1db083fe2b90082def8915f30f3248d5896bcec36a579d941bfc", 59544258), "cu13"},
	{nvidia("cusparse", "cusparse", "12.6.3.3", manylinux2014,
		"2b3c89c88d01ee0e477cb7f82ef60a11a4bcd57b6b87c33f789350b59759360b", 145942937), "cu13"},
	{nvidia("cusparselt-cu13", "cusparselt_cu13", "0.8.0", "manylinux2014",
		"25e30a8a7323935d4ad0340b95a0b69926eee755767e8e0b1cf8dd85b197d3fd", 169884119), "cusparselt"},
	{nvidia("nccl-cu13", "nccl_cu13", "2.28.9", "manylinux_2_18",
		"e4553a30f34195f3fa1da02a6da3d6337d28f2003943aa0a3d247bbc25fefc42", 196493177), "nccl"},
	{nvidia("nvjitlink", "nvjitlink", "13.0.88", manylinux2010,
		"13a74f429e23b921c1109976abefacc69835f2f433ebd323d3946e11d804e47b", 40713933), "cu13"},
	{nvidia("nvshmem-cu13", "nvshmem_cu13", "3.4.5", manylinux2014,
		"290f0a2ee94c9f3687a02502f3b9299a9f9fe826e6d0287ee18482e78d495b80", 60412546), "nvshmem"},
}
