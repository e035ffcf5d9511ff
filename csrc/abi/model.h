// What an rlt_model is.
#pragma once

#include "nn/transformer.h"

struct rlt_model {
  rlt::nn::Transformer net;
};
