package transformers

import "slices"

// ActivationBytes estimates what the backward pass of a token reads: inputs of norms and linears, queries, keys, values and MLP
// intermediates, in fp32. With checkpointing that is the input of each block, and the rest of one block.
func (c *Config) ActivationBytes(checkpointed bool) int64 {
	all, most := 0, 0
	for i := range c.NumHiddenLayers {
		own := c.layerShape(i)
		inner := own.IntermediateSize
		if core := c.core; core.Experts > 0 { // each of whose experts has its own copy of the token
			inner = core.SharedSize + core.ExpertsPerToken*(core.ExpertSize+c.HiddenSize)
		}
		block := 4*c.HiddenSize + 3*c.laurelRank + 4*c.streams*c.HiddenSize + 2*(c.NumAttentionHeads+own.KVHeads)*own.HeadDim + 3*inner + 3*c.inputSize
		all, most = all+block, max(most, block)
	}
	if checkpointed {
		return int64(4 * (c.NumHiddenLayers*(max(c.streams, 1)*c.HiddenSize+c.inputSize) + most))
	}
	return int64(4 * all)
}

// CacheBytes is what a token takes in the KV cache: a key and a value per KV head, in fp32. A CPU that multiplies
// in bf16 and a GPU take half of it for models in bf16.
func (c *Config) CacheBytes() int64 {
	numbers := 0
	for i := range c.NumHiddenLayers {
		// Convolutions keep a few tokens however long the text is, and some layers read another's keys.
		fixed := c.kinds != nil && (slices.Contains(c.kinds[i], convolution) || slices.Contains(c.kinds[i], linearAttention))
		if own := c.layerShape(i); !fixed && own.KeysOf == i {
			numbers += own.KVHeads * own.HeadDim
		}
	}
	return int64(2 * 4 * numbers)
}
