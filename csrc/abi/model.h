// The struct behind rlt_model.
#pragma once

#include "nn/transformer.h"

struct rlt_model {
  rlt::nn::Transformer net;
};
