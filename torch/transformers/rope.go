package transformers

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/torch"
)

// ropeInputs are the inputs of a frequency table that its parameters do not contain.
type ropeInputs struct {
	headDim, maxPositions int
	theta                 float64 // if the parameters name none
	partial               float64 // default fraction of a head's features that rotate
	wholeHead             bool    // the family rotates all features, whatever the fraction
	// original is original_max_position_embeddings if config.json has it outside of the parameters, where it wins; else
	// 0.
	original int
	alias    map[string]string // other names of rope_types
}

// A ropeKind computes the table of one rope_type.
type ropeKind func(f *fields, in ropeInputs, theta float64, rotary int) torch.Rope

var ropeKinds = map[string]ropeKind{
	"default": func(_ *fields, _ ropeInputs, theta float64, rotary int) torch.Rope {
		return torch.Rope{InvFreq: plainFrequencies(theta, rotary), Factor: 1}
	},
	"linear":       linearRope,
	"dynamic":      dynamicRope,
	"proportional": proportionalRope,
	"yarn":         yarnRope,
	"longrope":     longRope,
	"llama3":       llama3Rope,
}

// ropeFields are the known parameters of all rope_types. Any other would be an unsupported kind of rotation.
var ropeFields = []string{
	"rope_type", "type", "rope_theta", "partial_rotary_factor", "factor", "original_max_position_embeddings",
	"attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate",
	"short_factor", "long_factor", "low_freq_factor", "high_freq_factor",
	"finetuned", // a remark in some YaRN models
}

// rope computes the table for one set of RoPE parameters, in float64; transformers' modeling_rope_utils.py does it in
// float32. rotary is the number of leading features of a head that rotate.
//
// The dynamic kind recomputes its frequencies for each length above max_position_embeddings; below, it is the plain
// one. Only that part is computed here, and [Config.MaxLength] bounds sequences accordingly.
func rope(f *fields, in ropeInputs) (table torch.Rope, kind string, rotary int) {
	for _, key := range slices.Sorted(maps.Keys(f.raw)) {
		if f.has(key) && !slices.Contains(ropeFields, key) {
			f.fail("%.60q is not supported, want some of %s", key, strings.Join(ropeFields, ", "))
		}
	}
	kind = text(f, "rope_type", text(f, "type", "default"))
	kind = cmp.Or(in.alias[kind], kind)
	compute := ropeKinds[kind]
	if compute == nil {
		f.fail("rope_type %.40q is not supported, want one of %s", kind, strings.Join(slices.Sorted(maps.Keys(ropeKinds)), ", "))
		return torch.Rope{}, kind, 0
	}
	theta := f.positive("rope_theta", in.theta)
	partial := f.positive("partial_rotary_factor", in.partial)
	switch {
	case kind == "proportional":
		partial = 1 // its fraction is of pairs that rotate; the others have angle 0
	case in.wholeHead && partial != 1:
		f.fail("partial_rotary_factor %g is not supported for this model_type", partial)
	case partial > 1:
		f.fail("partial_rotary_factor %g is above 1", partial)
	}
	if rotary = int(float64(in.headDim) * partial); f.err == nil && (rotary < 2 || rotary%2 != 0) {
		f.fail("%d of a head's %d features would rotate, want an even number from 2", rotary, in.headDim)
	}
	if f.err != nil {
		return torch.Rope{}, kind, 0
	}
	table = compute(f, in, theta, rotary)
	for _, w := range slices.Concat(table.InvFreq, table.LongInvFreq, []float64{table.Factor, table.LongFactor}) {
		if math.IsNaN(w) || math.IsInf(w, 0) {
			f.fail("rope_type %q gives frequencies that are not finite", kind)
			break
		}
	}
	return table, kind, rotary
}

// plainFrequencies are θ^(-2i/n), Su et al. 2021, section 3.2.2. [n/2]
func plainFrequencies(theta float64, n int) []float64 {
	w := make([]float64, n/2)
	for i := range w {
		w[i] = 1 / math.Pow(theta, float64(2*i)/float64(n))
	}
	return w
}

// linearRope divides all frequencies by factor.
func linearRope(f *fields, _ ropeInputs, theta float64, rotary int) torch.Rope {
	factor := f.positive("factor", required)
	w := plainFrequencies(theta, rotary)
	for i := range w {
		w[i] /= factor
	}
	return torch.Rope{InvFreq: w, Factor: 1}
}

func dynamicRope(f *fields, _ ropeInputs, theta float64, rotary int) torch.Rope {
	f.positive("factor", required)
	return torch.Rope{InvFreq: plainFrequencies(theta, rotary), Factor: 1}
}

// proportionalRope rotates the first partial_rotary_factor of the pairs, with the frequencies of a full head, and
// leaves the others at angle 0.
func proportionalRope(f *fields, in ropeInputs, theta float64, rotary int) torch.Rope {
	factor := f.positive("factor", 1)
	share := f.positive("partial_rotary_factor", in.partial)
	w := plainFrequencies(theta, rotary)
	moving := int(math.Floor(share * float64(rotary) / 2))
	for i := range w {
		w[i] /= factor
		if i >= moving {
			w[i] = 0
		}
	}
	return torch.Rope{InvFreq: w, Factor: 1}
}

// originalLength is the length used in pretraining.
func originalLength(f *fields, in ropeInputs) int {
	if in.original > 0 {
		return in.original
	}
	return f.size("original_max_position_embeddings", in.maxPositions, maxPositions)
}

// stretch is the factor of the context extension: factor, or else the ratio of the lengths.
func stretch(f *fields, in ropeInputs, original int) float64 {
	return f.positive("factor", float64(in.maxPositions)/float64(original))
}

// yarnRope is YaRN (Peng et al. 2023, section 3): low frequencies are divided by factor, high
// ones kept, those between interpolated; cosine and sine carry the temperature.
func yarnRope(f *fields, in ropeInputs, theta float64, rotary int) torch.Rope {
	original := originalLength(f, in)
	factor := stretch(f, in, original)
	temperature := func(weight float64) float64 {
		if factor <= 1 {
			return 1
		}
		return 0.1*weight*math.Log(factor) + 1
	}
	attention := temperature(1)
	mscale, mscaleAll := value(f, "mscale", 0.0), value(f, "mscale_all_dim", 0.0)
	if mscale != 0 && mscaleAll != 0 {
		attention = temperature(mscale) / temperature(mscaleAll)
	}
	attention = value(f, "attention_factor", attention)

	// The pair that makes this number of turns over the original length.
	pair := func(turns float64) float64 {
		return float64(rotary) * math.Log(float64(original)/(turns*2*math.Pi)) / (2 * math.Log(theta))
	}
	low, high := pair(cmp.Or(value(f, "beta_fast", 0.0), 32)), pair(cmp.Or(value(f, "beta_slow", 0.0), 1))
	if value(f, "truncate", true) {
		low, high = math.Floor(low), math.Ceil(high)
	}
	low, high = max(low, 0), min(high, float64(rotary-1))
	if low == high {
		high += 0.001 // transformers avoids a division by 0 in the same way
	}
	w := plainFrequencies(theta, rotary)
	for i := range w {
		ramp := min(max((float64(i)-low)/(high-low), 0), 1)
		w[i] = w[i]/factor*ramp + w[i]*(1-ramp)
	}
	return torch.Rope{InvFreq: w, Factor: attention}
}

// longRope is LongRoPE (Ding et al. 2024): each frequency has one divisor for sequences within the original length and
// one for longer ones.
func longRope(f *fields, in ropeInputs, theta float64, rotary int) torch.Rope {
	original := originalLength(f, in)
	attention := 1.0
	if factor := stretch(f, in, original); factor > 1 {
		attention = math.Sqrt(1 + math.Log(factor)/math.Log(float64(original)))
	}
	attention = value(f, "attention_factor", attention)
	divided := func(key string) []float64 {
		w := plainFrequencies(theta, rotary)
		divisors := value(f, key, []float64(nil))
		if f.err == nil && len(divisors) != len(w) {
			f.fail("%s has %d numbers, want %d", key, len(divisors), len(w))
			return nil
		}
		for i, d := range divisors {
			w[i] /= d
		}
		return w
	}
	return torch.Rope{
		InvFreq: divided("short_factor"), LongInvFreq: divided("long_factor"),
		Factor: attention, LongFactor: attention, SwitchLength: original,
	}
}

// llama3Rope is Llama 3.1's: frequencies with a wavelength above the original length / low_freq_factor are divided by
// factor, those below the original length / high_freq_factor kept, those between interpolated.
func llama3Rope(f *fields, in ropeInputs, theta float64, rotary int) torch.Rope {
	factor := f.positive("factor", required)
	low, high := f.positive("low_freq_factor", required), f.positive("high_freq_factor", required)
	original := float64(originalLength(f, in))
	if f.err == nil && high <= low {
		f.fail("high_freq_factor %g is not above low_freq_factor %g", high, low)
	}
	w := plainFrequencies(theta, rotary)
	for i, frequency := range w {
		wave := 2 * math.Pi / frequency
		switch {
		case wave > original/low:
			w[i] = frequency / factor
		case wave >= original/high:
			smooth := (original/wave - low) / (high - low)
			w[i] = (1-smooth)*frequency/factor + smooth*frequency
		}
	}
	return torch.Rope{InvFreq: w, Factor: 1}
}

// ropeObject reads the parameters: rope_scaling of transformers 4, else rope_parameters.
func (f *fields) ropeObject() *fields {
	if old := f.object("rope_scaling"); len(old.raw) > 0 {
		return old
	}
	return f.object("rope_parameters")
}

// nestedRopes reads the parameters per kind of layer. Those of transformers 4 apply to layers with full attention.
func (f *fields) nestedRopes() (full, sliding *fields) {
	nested := f.object("rope_parameters")
	for _, key := range slices.Sorted(maps.Keys(nested.raw)) {
		if nested.has(key) && key != "full_attention" && key != "sliding_attention" {
			f.fail("rope_parameters: %.60q is not supported, want full_attention and sliding_attention", key)
		}
	}
	full, sliding = nested.object("full_attention"), nested.object("sliding_attention")
	delete(full.raw, "truncate") // transformers looks for it outside, in vain
	delete(sliding.raw, "truncate")
	if old := f.object("rope_scaling"); len(old.raw) > 0 {
		for key, raw := range full.raw {
			if _, ok := old.raw[key]; !ok {
				old.raw[key] = raw
			}
		}
		full = old
	}
	if f.err == nil {
		f.err = nested.err
	}
	return full, sliding
}

// ropeInputs reads the fields outside of the RoPE parameters.
func (c *Config) ropeInputs(f *fields) ropeInputs {
	partial := c.family.partial
	in := ropeInputs{headDim: c.HeadDim, maxPositions: c.MaxPositionEmbeddings, wholeHead: partial == 0, alias: c.family.ropeAlias}
	if in.wholeHead {
		partial = 1
	}
	in.theta = f.positive("rope_theta", c.family.theta)
	in.partial = f.positive("partial_rotary_factor", partial)
	const original = "original_max_position_embeddings"
	if in.original = c.family.sizes[original]; f.has(original) {
		in.original = f.size(original, required, maxPositions)
	}
	return in
}

// A ropeSource is the input of a table, for formats that describe it differently.
type ropeSource struct {
	kind          string
	theta, factor float64
	original      int // length of pretraining
}

// addRope computes another table. At first all layers use the first one.
func (c *Config) addRope(f, parameters *fields, in ropeInputs) {
	if f.err != nil {
		return
	}
	for _, layers := range []string{"full_attention", "sliding_attention"} {
		if parameters.has(layers) {
			parameters.fail("%s is not supported for this model_type: one kind of RoPE for all layers is wanted", layers)
		}
	}
	table, kind, rotary := rope(parameters, in)
	if f.err = parameters.err; f.err != nil {
		return
	}
	c.dynamic = c.dynamic || kind == "dynamic"
	c.ropes = append(c.ropes, ropeSource{
		kind: kind, theta: value(parameters, "rope_theta", in.theta), factor: value(parameters, "factor", 0.0),
		original: cmp.Or(in.original, value(parameters, "original_max_position_embeddings", in.maxPositions)),
	})
	c.core.RotaryDim = max(c.core.RotaryDim, rotary)
	c.core.Ropes = append(c.core.Ropes, table)
	if c.core.RopeOf == nil {
		c.core.RopeOf = make([]int, c.NumHiddenLayers)
	}
}
