package unpack

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/torch/safetensors"
)

// gptq is the format of GPTQModel and AutoGPTQ: qweight [in·bits/32, out] in I32, with the codes of an output in a column;
// qzeros [groups, out·bits/32]; scales [groups, out]; g_idx [in], the group of each input.
func gptq(config json.RawMessage) ([]Format, error) {
	var c struct {
		Bits    int    `json:"bits"`
		Group   int    `json:"group_size"`
		Format  string `json:"checkpoint_format"`
		Renamed string `json:"format"`
	}
	if err := json.Unmarshal(config, &c); err != nil {
		return nil, err
	}
	if !slices.Contains([]int{2, 3, 4, 8}, c.Bits) {
		return nil, fmt.Errorf("bits is %d, want 2, 3, 4 or 8", c.Bits)
	}
	less := map[string]uint32{"gptq": 1, "gptq_v2": 0} // what zeros are stored without
	format := cmp.Or(c.Format, c.Renamed, "gptq")
	if _, ok := less[format]; !ok {
		return nil, fmt.Errorf("checkpoint_format %.40q is not supported, want gptq or gptq_v2", format)
	}
	return []Format{{end: "qweight", parts: []string{"qzeros", "scales", "g_idx?"}, open: func(p *parts) (*grid, error) {
		return openGPTQ(p, c.Bits, c.Group, less[format])
	}}}, nil
}

func openGPTQ(p *parts, bits, group int, less uint32) (*grid, error) {
	c, err := p.columns()
	if err != nil {
		return nil, err
	}
	out, groups, in := c.weight[1], c.scales[0], c.weight[0]*32/bits
	grouped := p.has("g_idx")
	if grouped {
		indices, _, err := p.shape("g_idx", 1, safetensors.I32)
		if err != nil {
			return nil, err
		}
		in = indices[0]
	}
	if err := cmp.Or(p.want("qweight", c.weight, wordsOf(in, bits), out), p.fit(c, out, bits)); err != nil {
		return nil, err
	}
	if group, err = p.groupSize(in, groups, group); err != nil && !grouped {
		return nil, err
	}
	return &grid{out: out, in: in, dtype: c.dtype, across: group, down: 1, read: func(r *reader) content {
		codes, zeros, scales := r.words("qweight"), r.words("qzeros"), r.floats("scales")
		c := content{
			code: func(o, i int) float32 { return float32(bitsAt(codes, o, out, i, bits)) },
			zero: func(o, b int) float32 {
				return float32((bitsAt(zeros, b*wordsOf(out, bits), 1, o, bits) + less) & (1<<bits - 1))
			},
			scale: func(o, b int) float32 { return scales[b*out+o] },
		}
		if grouped {
			c.block = r.blocks("g_idx", groups)
		}
		return c
	}}, nil
}

// columns are the shapes of what GPTQ and AWQ have alike: qweight, qzeros and scales.
type columns struct {
	weight, zeros, scales []int
	dtype                 safetensors.DType // of the scales
}

func (p *parts) columns() (c columns, err error) {
	if c.weight, _, err = p.shape("qweight", 2, safetensors.I32); err == nil {
		c.zeros, _, err = p.shape("qzeros", 2, safetensors.I32)
	}
	if err == nil {
		c.scales, c.dtype, err = p.shape("scales", 2, floats...)
	}
	return c, err
}

// fit refuses scales [groups, out] and zeros [groups, out·bits/32] of other shapes.
func (p *parts) fit(c columns, out, bits int) error {
	groups := c.scales[0]
	return cmp.Or(p.want("scales", c.scales, groups, out), p.want("qzeros", c.zeros, groups, wordsOf(out, bits)))
}

// awqOrder is where AWQ puts the eight codes of a word: code i of a word is that of output awqOrder[i].
var awqOrder = [8]int{0, 2, 4, 6, 1, 3, 5, 7}

// awq is the format gemm of AutoAWQ: qweight [in, out/8] in I32, qzeros [groups, out/8], scales [groups, out].
func awq(config json.RawMessage) ([]Format, error) {
	var c struct {
		Bits    int    `json:"bits"`
		Older   int    `json:"w_bit"`
		Group   int    `json:"group_size"`
		Size    int    `json:"q_group_size"`
		Version string `json:"version"`
		Format  string `json:"format"`
	}
	if err := json.Unmarshal(config, &c); err != nil {
		return nil, err
	}
	if bits := cmp.Or(c.Bits, c.Older, 4); bits != 4 {
		return nil, fmt.Errorf("bits is %d, want 4", bits)
	}
	if version := cmp.Or(c.Version, c.Format, "gemm"); !strings.EqualFold(version, "gemm") {
		return nil, fmt.Errorf("version %.40q is not supported, want gemm", version)
	}
	return []Format{{end: "qweight", parts: []string{"qzeros", "scales"}, open: func(p *parts) (*grid, error) {
		return openAWQ(p, cmp.Or(c.Group, c.Size))
	}}}, nil
}

func openAWQ(p *parts, group int) (*grid, error) {
	c, err := p.columns()
	if err != nil {
		return nil, err
	}
	in, out, groups := c.weight[0], 8*c.weight[1], c.scales[0]
	if err := p.fit(c, out, 4); err != nil {
		return nil, err
	}
	if group, err = p.groupSize(in, groups, group); err != nil {
		return nil, err
	}
	var place [8]int
	for i, output := range awqOrder {
		place[output] = 4 * i
	}
	return &grid{out: out, in: in, dtype: c.dtype, across: group, down: 1, read: func(r *reader) content {
		codes, zeros, scales := r.words("qweight"), r.words("qzeros"), r.floats("scales")
		at := func(words []uint32, row, o int) float32 { return float32(words[row*out/8+o/8] >> place[o%8] & 15) }
		return content{
			code:  func(o, i int) float32 { return at(codes, i, o) },
			zero:  func(o, b int) float32 { return at(zeros, b, o) },
			scale: func(o, b int) float32 { return scales[b*out+o] },
		}
	}}, nil
}
