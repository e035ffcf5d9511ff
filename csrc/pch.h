// Precompiled for every source of the core. Narrow headers only: torch/torch.h alone costs 20 s a file.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>
