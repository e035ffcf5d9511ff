package unpack

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/rltrain/rltrain/torch/safetensors"
)

// fp8 is the format that transformers and DeepSeek write: weight [out, in] in F8_E4M3, and weight_scale_inv with a scale for
// each block, of weight_block_size or of what the scales' shape says. Scales in U8 are powers of two.
func fp8(config json.RawMessage) ([]Format, error) {
	var c struct {
		Block []int `json:"weight_block_size"`
	}
	if err := json.Unmarshal(config, &c); err != nil {
		return nil, err
	}
	if c.Block != nil && (len(c.Block) != 2 || c.Block[0] < 1 || c.Block[1] < 1) {
		return nil, fmt.Errorf("weight_block_size is %v, want two sizes", c.Block)
	}
	return []Format{{end: "weight_scale_inv", parts: []string{"weight"}, unused: []string{"activation_scale", "input_scale"}, open: func(p *parts) (*grid, error) {
		return openBytes(p, "weight_scale_inv", c.Block, safetensors.BF16)
	}}}, nil
}

// bitsandbytes is the format of its 8-bit weights: weight [out, in] in I8 and SCB [out], the largest value of each output,
// which is code 127. Values are rounded to float16, in which such models compute.
func bitsandbytes(config json.RawMessage) ([]Format, error) {
	var c struct {
		Four bool   `json:"load_in_4bit"`
		Type string `json:"bnb_4bit_quant_type"`
	}
	if err := json.Unmarshal(config, &c); err != nil {
		return nil, err
	}
	if c.Four {
		if c.Type != "nf4" {
			return nil, fmt.Errorf("bnb_4bit_quant_type is %.40q, want nf4", c.Type)
		}
		return nil, nil
	}
	return []Format{{end: "SCB", parts: []string{"weight", "weight_format?"}, open: func(p *parts) (*grid, error) {
		weight, _, err := p.shape("weight", 2, safetensors.I8)
		if err != nil {
			return nil, err
		}
		scales, _, err := p.shape("SCB", 1, safetensors.F32)
		if err != nil {
			return nil, err
		}
		if err := p.want("SCB", scales, weight[0]); err != nil {
			return nil, err
		}
		tiled := p.has("weight_format")
		return &grid{out: weight[0], in: weight[1], dtype: safetensors.F16, across: weight[1], down: 1, read: func(r *reader) content {
			codes, largest := r.bytes("weight"), r.floats("SCB")
			if tiled {
				if layout := r.bytes("weight_format"); r.err == nil && layout[0] != 0 {
					r.err = errors.New("weight_format is that of a GPU's tiles, want rows")
				}
			}
			return content{
				code:  func(o, i int) float32 { return float32(int8(codes[o*weight[1]+i])) * largest[o] },
				scale: func(int, int) float32 { return float32(1. / 127) },
			}
		}}, nil
	}}}, nil
}

// openBytes reads a weight of one code per byte, F8_E4M3 or I8, with scales [1], [out], [out, 1] or one for each block, and perhaps
// zeros like them. dtype is the values', "" for the scales'.
func openBytes(p *parts, scale string, block []int, dtype safetensors.DType) (*grid, error) {
	weight, kind, err := p.shape("weight", 2, safetensors.F8E4M3, safetensors.I8)
	if err != nil {
		return nil, err
	}
	kinds := slices.Clone(floats)
	if dtype != "" {
		kinds = append(kinds, safetensors.U8)
	}
	scales, scaled, err := p.matrix(scale, kinds...)
	if err != nil {
		return nil, err
	}
	g := &grid{out: weight[0], in: weight[1], dtype: dtype, down: ceil(weight[0], scales[0]), across: ceil(weight[1], scales[1])}
	if block != nil && scales[0] > 1 && scales[1] > 1 {
		g.down, g.across = block[0], block[1]
	}
	if err := p.want(scale, scales, ceil(g.out, g.down), ceil(g.in, g.across)); err != nil {
		return nil, err
	}
	const zero = "weight_zero_point"
	signed := p.has(zero)
	if signed {
		zeros, _, err := p.matrix(zero, safetensors.I8)
		if err != nil {
			return nil, err
		}
		if err := p.want(zero, zeros, scales...); err != nil {
			return nil, err
		}
	}
	if dtype == "" {
		g.dtype = scaled
	}
	g.read = func(r *reader) content {
		codes := r.bytes("weight")
		c := content{code: func(o, i int) float32 { return f8E4M3[codes[o*g.in+i]] }}
		if kind == safetensors.I8 {
			c.code = func(o, i int) float32 { return float32(int8(codes[o*g.in+i])) }
		}
		if scaled == safetensors.U8 {
			exponents := r.bytes(scale)
			c.scale = func(o, b int) float32 { return float32(math.Ldexp(1, int(exponents[o*scales[1]+b])-127)) }
		} else {
			values := r.floats(scale)
			c.scale = func(o, b int) float32 { return values[o*scales[1]+b] }
		}
		if signed {
			zeros := r.bytes(zero)
			c.zero = func(o, b int) float32 { return float32(int8(zeros[o*scales[1]+b])) }
		}
		return c
	}
	return g, nil
}
