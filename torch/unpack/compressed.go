package unpack

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/rltrain/rltrain/torch/safetensors"
)

// compressedTensors are the formats of vLLM's compressed-tensors: pack-quantized, whole numbers of 1 to 8 bits, and
// int-quantized, float-quantized and naive-quantized, one code per byte.
func compressedTensors(config json.RawMessage) ([]Format, error) {
	type weights struct {
		Bits  int   `json:"num_bits"`
		Group int   `json:"group_size"`
		Block []int `json:"block_structure"`
	}
	var c struct {
		Format string `json:"format"`
		Groups map[string]struct {
			Format  string  `json:"format"`
			Weights weights `json:"weights"`
		} `json:"config_groups"`
		Sparsity struct {
			Format string `json:"format"`
		} `json:"sparsity_config"`
		Transforms struct {
			Groups map[string]any `json:"config_groups"`
		} `json:"transform_config"`
	}
	if err := json.Unmarshal(config, &c); err != nil {
		return nil, err
	}
	if s := c.Sparsity.Format; s != "" && s != "dense" {
		return nil, fmt.Errorf("sparsity_config.format %.40q is not supported, want dense", s)
	}
	if len(c.Transforms.Groups) > 0 {
		return nil, fmt.Errorf("transform_config is not supported: the weights are rotated")
	}
	formats := []string{c.Format}
	var bits, sizes, block []int
	for _, g := range c.Groups {
		formats = append(formats, g.Format)
		bits, sizes = append(bits, g.Weights.Bits), append(sizes, g.Weights.Group)
		if g.Weights.Block != nil {
			if len(g.Weights.Block) != 2 || min(g.Weights.Block[0], g.Weights.Block[1]) < 1 || block != nil && !slices.Equal(block, g.Weights.Block) {
				return nil, fmt.Errorf("config_groups: block_structure is %v, want the same two sizes in all groups", g.Weights.Block)
			}
			block = g.Weights.Block
		}
	}
	for _, f := range formats {
		switch f {
		case "", "mixed-precision", "dense", "pack-quantized", "int-quantized", "float-quantized", "naive-quantized":
		default:
			return nil, fmt.Errorf("format %.40q is not supported, want pack-quantized, int-quantized, float-quantized or naive-quantized", f)
		}
	}
	unused := []string{"input_scale", "input_zero_point", "output_scale", "output_zero_point", "k_scale", "v_scale", "q_scale"}
	return []Format{
		{end: "weight_packed", parts: []string{"weight_scale", "weight_shape", "weight_zero_point?", "weight_g_idx?"}, unused: unused, open: func(p *parts) (*grid, error) {
			return openPacked(p, bits, sizes)
		}},
		{end: "weight_scale", parts: []string{"weight", "weight_zero_point?"}, open: func(p *parts) (*grid, error) {
			return openBytes(p, "weight_scale", block, "")
		}},
	}, nil
}

// openPacked reads weight_packed [out, in·bits/32], weight_scale [out, groups] and weight_zero_point [out·bits/32, groups]. Codes
// and zeros are stored plus half of their range, which cancels where there are zeros.
func openPacked(p *parts, known, sizes []int) (*grid, error) {
	packed, _, err := p.shape("weight_packed", 2, safetensors.I32)
	if err != nil {
		return nil, err
	}
	scales, dtype, err := p.matrix("weight_scale", floats...)
	if err != nil {
		return nil, err
	}
	size, err := p.size("weight_shape")
	if err != nil {
		return nil, err
	}
	out, in := packed[0], size[1]
	bits := 0
	for _, b := range known {
		if b >= 1 && b <= 8 && wordsOf(in, b) == packed[1] {
			bits = b
		}
	}
	if size[0] != out || bits == 0 {
		return nil, fmt.Errorf("%sweight_packed has shape %v, which is none of a weight %v in %v bits", p.base, packed, size, known)
	}
	groups := scales[1]
	if scales[0] != out && scales[0] != 1 {
		return nil, fmt.Errorf("%sweight_scale has shape %v, want %d rows", p.base, scales, out)
	}
	const zero = "weight_zero_point"
	signed := p.has(zero)
	if signed {
		zeros, _, err := p.shape(zero, 2, safetensors.I32)
		if err != nil {
			return nil, err
		}
		if err := p.want(zero, zeros, wordsOf(out, bits), groups); err != nil {
			return nil, err
		}
	}
	grouped := p.has("weight_g_idx")
	across, err := p.groupSize(in, groups, sizes...)
	if err != nil && !grouped {
		return nil, err
	}
	return &grid{out: out, in: in, dtype: dtype, across: across, down: ceil(out, scales[0]), read: func(r *reader) content {
		codes, scales := r.words("weight_packed"), r.floats("weight_scale")
		c := content{
			code:  func(o, i int) float32 { return float32(bitsAt(codes, o*packed[1], 1, i, bits)) },
			scale: func(o, b int) float32 { return scales[o*groups+b] },
			zero:  func(int, int) float32 { return float32(int(1) << (bits - 1)) },
		}
		if signed {
			zeros := r.words(zero)
			c.zero = func(o, b int) float32 { return float32(bitsAt(zeros, b, groups, o, bits)) }
		}
		if grouped {
			c.block = r.blocks("weight_g_idx", groups)
		}
		return c
	}}, nil
}

// size reads the shape of a weight from a tensor of two numbers.
func (p *parts) size(end string) ([2]int, error) {
	n, dtype, err := p.shape(end, 1, safetensors.I64, safetensors.I32)
	if err != nil {
		return [2]int{}, err
	}
	if err := p.want(end, n, 2); err != nil {
		return [2]int{}, err
	}
	data, err := p.m.Bytes(p.base + end)
	if err != nil {
		return [2]int{}, err
	}
	var size [2]int
	for i := range size {
		v := uint64(binary.LittleEndian.Uint32(data[4*i:]))
		if dtype == safetensors.I64 {
			v = binary.LittleEndian.Uint64(data[8*i:])
		}
		if v < 1 || v > 1<<24 {
			return size, fmt.Errorf("%s%s has a size of %d", p.base, end, v)
		}
		size[i] = int(v)
	}
	return size, nil
}
