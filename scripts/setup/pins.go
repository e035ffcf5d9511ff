package main

import (
	"github.com/rltrain/rltrain/internal/libtorch"
	"github.com/rltrain/rltrain/internal/wheel"
)

var clangFormat = wheel.Set{Name: "clang-format-16.0.6", Bytes: 4e6, Parts: []wheel.Part{{
	Wheel: wheel.Wheel{
		Project: "clang-format", File: "clang_format-16.0.6-py2.py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
		SHA256: "20c9b395782fe662ea51500d3c551161388e0cd2baf8716caf97b0e5817194e0", Size: 1582387,
	},
	Places: map[string]string{
		"clang_format/data/bin/clang-format":       "clang-format",
		"clang_format-16.0.6.dist-info/LICENSE.md": "LICENSE.md",
	},
}}}

// pepper is a q-like language; its interpreter is chili-pie (MIT).
var pepper = wheel.Set{Name: "chili-pie-0.11.3", Bytes: 87e6, Parts: []wheel.Part{{
	Wheel: wheel.Wheel{
		Project: "chili-pie", File: "chili_pie-0.11.3-py3-none-manylinux_2_28_x86_64.whl",
		SHA256: "7ebeaf0c554a9c077de4599e619c139eb66d69147cd01cdeb3a9d4cd237a312a", Size: 31753635,
	},
	Places: map[string]string{
		"chili_pie-0.11.3.data/scripts/chili":         "chili",
		"chili_pie-0.11.3.dist-info/licenses/LICENSE": "LICENSE",
	},
}}}

// cudaToolkit is the compiler of CUDA 13.0, and headers.
var cudaToolkit = wheel.Set{Name: "cuda-toolkit-13.0", Bytes: 199e6, Parts: []wheel.Part{
	{Wheel: libtorch.CUDARuntime, Places: map[string]string{"nvidia/cu13/include/": "include/"}},
	{Wheel: wheel.Wheel{
		Project: "nvidia-cuda-crt", File: "nvidia_cuda_crt-13.0.88-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
		SHA256: "2c8043c7c9e02492716426e9919fc78d2c5b3b2a7a768a88e952676b08aa55a4", Size: 134086,
	}, Places: map[string]string{"nvidia/cu13/include/": "include/"}},
	{Wheel: wheel.Wheel{
		Project: "nvidia-cuda-cccl", File: "nvidia_cuda_cccl-13.0.85-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
		SHA256: "e0da7ad981f3a8aff08241b5bfc1af868742a63e2762f53a5171c492ef242649", Size: 3120526,
	}, Places: map[string]string{"nvidia/cu13/include/nv/": "include/nv/"}}, // included by the bfloat16 header
	{Wheel: wheel.Wheel{
		Project: "nvidia-cuda-nvcc", File: "nvidia_cuda_nvcc-13.0.88-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
		SHA256: "56fe502eb77625a12f25172caa3cdddb4e4c8ba2c8c17dba44b164761b380f03", Size: 37384532,
	}, Places: map[string]string{"nvidia/cu13/bin/": "bin/", "nvidia/cu13/include/": "include/"}},
	{Wheel: wheel.Wheel{
		Project: "nvidia-nvvm", File: "nvidia_nvvm-13.0.88-py3-none-manylinux2010_x86_64.manylinux_2_12_x86_64.whl",
		SHA256: "c5f41ffeb6466944a026dfa5317d7d85355c119bbec279205d22f1869d1054e0", Size: 61601415,
	}, Places: map[string]string{"nvidia/cu13/nvvm/": "nvvm/"}},
}}
