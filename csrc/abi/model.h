// What an rlt_model is.
#pragma once

#include <variant>

#include "nn/decoder.h"
#include "nn/encoder.h"

struct rlt_model {
  std::variant<rlt::nn::Encoder, rlt::nn::Decoder> net;
};
