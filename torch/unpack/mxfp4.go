package unpack

import (
	"encoding/json"
	"math"
	"slices"

	"github.com/rltrain/rltrain/torch/safetensors"
)

// fp4 are the values of the codes of MXFP4: a sign, two bits of exponent and one of mantissa.
var fp4 = [16]float32{0, 0.5, 1, 1.5, 2, 3, 4, 6, float32(math.Copysign(0, -1)), -0.5, -1, -1.5, -2, -3, -4, -6}

// mxfp4 is the format of gpt-oss's experts: blocks U8 [experts, out, groups, 16] with 32 codes each, the first one in the low
// half of a byte, and scales U8 [experts, out, groups], powers of two. The tensor is [experts, in, out], as transformers has it.
func mxfp4(json.RawMessage) ([]Format, error) {
	var all []Format
	for _, name := range []string{"gate_up_proj", "down_proj"} {
		all = append(all, Format{end: name + "_blocks", parts: []string{name + "_scales"}, stack: func(p *parts) (safetensors.Derived, error) {
			return openMXFP4(p, name)
		}})
	}
	return all, nil
}

func openMXFP4(p *parts, name string) (d safetensors.Derived, err error) {
	const bytes, codes = 16, 32 // of a group
	blocks, _, err := p.shape(name+"_blocks", 4, safetensors.U8)
	if err != nil {
		return d, err
	}
	scales, _, err := p.shape(name+"_scales", 3, safetensors.U8)
	if err != nil {
		return d, err
	}
	out, in := scales[1], scales[2]*codes
	return safetensors.Derived{
		Name: p.base + name, DType: safetensors.BF16, Shape: []int64{int64(scales[0]), int64(in), int64(out)}, Split: true,
		Values: func(raw func(string) (safetensors.Tensor, error)) ([]float32, error) {
			r := &reader{base: p.base, raw: raw}
			packed, exponents := r.bytes(name+"_blocks"), r.bytes(name+"_scales")
			if r.err != nil {
				return nil, r.err
			}
			values := make([]float32, 2*len(packed))
			for g, exponent := range exponents {
				row, expert := g/scales[2], g/scales[2]/out
				scale := float32(math.Ldexp(1, int(exponent)-127))
				to := values[(expert*in+g%scales[2]*codes)*out+row%out:]
				for i, pair := range packed[g*bytes : (g+1)*bytes] {
					to[2*i*out], to[(2*i+1)*out] = fp4[pair&15]*scale, fp4[pair>>4]*scale
				}
			}
			return values, nil
		},
	}, p.want(name+"_blocks", blocks, append(slices.Clone(scales), bytes)...)
}
