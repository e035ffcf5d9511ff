package lora

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/torch/safetensors"
)

// A Change is what an adapter does to a tensor of the model beyond pairs and full tensors. It can only be merged.
type Change struct {
	Tensor string // its name in the model: "model.layers.0.mlp.down_proj.weight"
	// Least and Most bound the shape of the tensor, which is [out, in] for weights.
	Least, Most []int64
	Optional    bool // the model may lack the tensor
	Apply       func(values []float32)
}

// Fits checks the shape of the model's tensor.
func (c Change) Fits(shape []int64) error {
	ok := len(shape) == len(c.Least)
	for i := 0; ok && i < len(shape); i++ {
		ok = shape[i] >= c.Least[i] && shape[i] <= c.Most[i]
	}
	if ok {
		return nil
	}
	var want []string
	for i, least := range c.Least {
		text := fmt.Sprint(least)
		if c.Most[i] == anySize {
			text += " or more"
		} else if c.Most[i] != least {
			text += fmt.Sprintf(" to %d", c.Most[i])
		}
		want = append(want, text)
	}
	return fmt.Errorf("tensor %s: the adapter is for the shape [%s], the model has %v", c.Tensor, strings.Join(want, ", "), shape)
}

const anySize = math.MaxInt64

// change is a Change of a tensor of exactly a shape; a size of 0 stands for any.
func change(tensor string, apply func([]float32), shape ...int) Change {
	c := Change{Tensor: tensor, Apply: apply}
	for _, n := range shape {
		c.Least, c.Most = append(c.Least, int64(max(n, 1))), append(c.Most, int64(n))
		if n == 0 {
			c.Most[len(c.Most)-1] = anySize
		}
	}
	return c
}

// addBias is what the bias of B does to the bias of a module.
func addBias(module string, bias []float32, scale float64) Change {
	return change(module+".bias", func(values []float32) {
		for i := range values {
			values[i] = float32(float64(values[i]) + scale*float64(bias[i]))
		}
	}, len(bias))
}

// changeTokens replaces the rows of Tokens in an embedding or output layer.
func (c Config) changeTokens(f *safetensors.File, full, module string) (Change, error) {
	rows, shape, err := readMatrix(f, full, 2)
	if err != nil {
		return Change{}, err
	}
	tokens, ok := c.Tokens[""]
	for key, own := range c.Tokens {
		if key != "" && ends(module, key) {
			tokens, ok = own, true
		}
	}
	if !ok || len(tokens) != shape[0] {
		return Change{}, fmt.Errorf("tensor %.120q has shape %v, but trainable_token_indices gives it %d tokens", full, shape, len(tokens))
	}
	width := shape[1]
	changed := change(module+".weight", func(table []float32) {
		for i, token := range tokens {
			copy(table[token*width:(token+1)*width], rows[i*width:(i+1)*width])
		}
	}, 0, width)
	changed.Least[0] = int64(slices.Max(tokens)) + 1
	return changed, nil
}
