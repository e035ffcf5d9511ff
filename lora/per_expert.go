package lora

import (
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// In transformers 4, an expert was linear modules, each with a pair in PEFT's files. transformers 5 has one tensor for all experts of a
// layer, gate beside up, and one pair for it: PEFT joins the pairs when it loads such files, and so does this file.

// projections are the linear modules of an expert by the tensor of ExpertParameters that they are parts of, in both spellings.
var projections = map[string][][]string{
	"gate_up_proj": {{"gate_proj", "up_proj"}, {"w1", "w3"}},
	"down_proj":    {{"down_proj"}, {"w2"}},
}

// ofExpert are the layer's module, the number and the projection in the name of a linear module of one expert.
var ofExpert = regexp.MustCompile(`\A(.*\.)experts\.(0|[1-9]\d{0,5})\.(gate_proj|up_proj|down_proj|w1|w2|w3)\z`)

// expertGroup are the pairs of the experts of a layer that one tensor holds today.
type expertGroup struct {
	layer string   // its module, as the file has it: "model.layers.0.mlp."
	parts []string // the projections
	pairs []map[int]Pair
}

// joinedPair is a pair of all experts, with its lora_alpha.
type joinedPair struct {
	Pair
	alpha float64
}

// name is the file's name of a linear module.
func (g *expertGroup) name(part, expert int) string {
	return fmt.Sprintf("%sexperts.%d.%s", g.layer, expert, g.parts[part])
}

// joinExperts joins the pairs of single experts, which it removes from names, and changes the configuration to what describes the
// joined pairs.
func (a *Adapter) joinExperts(r *rule, names []string, modules map[string]tensors) (rest []string, joined []Pair, err error) {
	groups := map[string]*expertGroup{}
	experts := 0
	var all []joinedPair
	for _, name := range names {
		m := ofExpert.FindStringSubmatch(name)
		if m == nil {
			rest = append(rest, name)
			continue
		}
		if err := r.takesExpert(name); err != nil {
			return nil, nil, err
		}
		expert, _ := strconv.Atoi(m[2])
		tensor, parts := tensorOf(m[3])
		key := strings.TrimSuffix(m[1], "block_sparse_moe.") // Mixtral's, now mlp
		if key != m[1] {
			key += "mlp."
		}
		key += "experts." + tensor
		g := groups[key]
		if g == nil {
			g = &expertGroup{layer: m[1], parts: parts, pairs: make([]map[int]Pair, len(parts))}
			groups[key] = g
		}
		part := slices.Index(g.parts, m[3])
		if part < 0 || g.layer != m[1] {
			return nil, nil, fmt.Errorf("tensors %.120q and %.120q name the same experts differently", wrapper+g.layer+"experts.*."+g.parts[0], wrapper+name)
		}
		if g.pairs[part] == nil {
			g.pairs[part] = map[int]Pair{}
		}
		if g.pairs[part][expert], err = modules[name].pair(name, r); err != nil {
			return nil, nil, err
		}
		experts = max(experts, expert+1)
	}
	for _, key := range slices.SortedFunc(maps.Keys(groups), compareNames) {
		p, err := groups[key].join(experts, r)
		if err != nil {
			return nil, nil, err
		}
		p.Module = key
		all = append(all, p)
		joined = append(joined, p.Pair)
	}
	if len(joined) > 0 {
		a.Config.describeJoined(all, rest)
	}
	return rest, joined, nil
}

// tensorOf is the tensor that holds a projection today, and its projections in the same spelling.
func tensorOf(projection string) (tensor string, parts []string) {
	for tensor, spellings := range projections {
		for _, parts := range spellings {
			if slices.Contains(parts, projection) {
				return tensor, parts
			}
		}
	}
	return "", nil
}

// takesExpert reports why a linear module of one expert cannot be adapted.
func (r *rule) takesExpert(name string) error {
	switch {
	case !r.means(name):
		return fmt.Errorf("tensor %.120q belongs to no module of target_modules (%s)", wrapper+name+suffixA, r.TargetModules)
	case r.DoRA || r.LoRABias:
		return fmt.Errorf("tensor %.120q adapts one expert; with use_dora or lora_bias that is not supported", wrapper+name+suffixA)
	case len(r.TargetParameters) > 0:
		return fmt.Errorf("tensor %.120q adapts one expert, but target_parameters adapt all experts at once (%s)", wrapper+name+suffixA, strings.Join(r.TargetParameters, ", "))
	}
	return nil
}

// join is the pair of all experts: A of the parts below each other, and B with the parts on its diagonal.
func (g *expertGroup) join(experts int, r *rule) (joinedPair, error) {
	first := Pair{}
	for part := range g.parts {
		for e := range experts {
			p, ok := g.pairs[part][e]
			if !ok {
				return joinedPair{}, fmt.Errorf("tensor %.120q is missing; the adapter has %d experts, and all of a layer's %s must be adapted",
					wrapper+g.name(part, e)+suffixA, experts, strings.Join(g.parts, " and "))
			}
			if first.R == 0 {
				first = p
			}
			if p.R != first.R || p.Scale != first.Scale {
				return joinedPair{}, fmt.Errorf("tensor %.120q has rank %d and scale %g, but %s has %d and %g; experts of a layer need the same",
					wrapper+g.name(part, e)+suffixA, p.R, p.Scale, g.name(0, 0), first.R, first.Scale)
			}
			if p.In != first.In || p.Out != first.Out {
				return joinedPair{}, fmt.Errorf("tensor %.120q is for a weight of shape %v, but %s is for %v",
					wrapper+g.name(part, e)+suffixA, Shape{Out: p.Out, In: p.In}, g.name(0, 0), Shape{Out: first.Out, In: first.In})
			}
		}
	}
	n := len(g.parts)
	_, alpha := r.rankAndAlpha(g.name(0, 0))
	if r.RSLoRA {
		alpha *= math.Sqrt(float64(n))
	} else {
		alpha *= float64(n)
	}
	p := joinedPair{Pair{R: n * first.R, In: first.In, Out: n * first.Out, Experts: experts}, alpha}
	p.Scale = scaleOf(alpha, p.R, r.RSLoRA)
	p.B = make([]float32, p.Out*p.R*experts)
	for e := range experts {
		for part := range g.parts {
			own := g.pairs[part][e]
			p.A = append(p.A, own.A...)
			for i, b := range own.B {
				row, column := part*first.Out+i/first.R, part*first.R+i%first.R
				p.B[(row*p.R+column)*experts+e] = b
			}
		}
	}
	return p, nil
}

// describeJoined replaces what names single experts by target_parameters, with the ranks and alphas of the joined pairs. rest are the
// other adapted modules. Dropout is off, as PEFT has none there.
func (c *Config) describeJoined(joined []joinedPair, rest []string) {
	target := func(p joinedPair) string { return p.Module }
	if c.layersAlike(joined) {
		target = func(p joinedPair) string { return inLayer(p.Module) }
	}
	var others []string
	for _, target := range c.TargetModules.Names {
		if slices.ContainsFunc(rest, func(module string) bool { return ends(module, target) }) {
			others = append(others, target)
		}
	}
	c.TargetModules.Names, c.Dropout = others, 0
	var ranks []Pattern[int]
	var alphas []Pattern[float64]
	for _, p := range joined {
		if name := target(p); !slices.Contains(c.TargetParameters, name) {
			c.TargetParameters = append(c.TargetParameters, name)
			if len(c.RankPattern) > 0 || p.R != c.R {
				ranks = append(ranks, Pattern[int]{regexp.QuoteMeta(name), p.R})
			}
			if len(c.AlphaPattern) > 0 || p.alpha != c.Alpha {
				alphas = append(alphas, Pattern[float64]{regexp.QuoteMeta(name), p.alpha})
			}
		}
	}
	c.RankPattern, c.AlphaPattern = append(ranks, c.RankPattern...), append(alphas, c.AlphaPattern...)
}

// layersAlike reports whether all layers have the same: their tensors then need no layers in their names.
func (c *Config) layersAlike(joined []joinedPair) bool {
	if len(c.Layers) > 0 || c.TargetModules.Pattern != "" || slices.ContainsFunc(c.TargetModules.Names, anyLayer.MatchString) {
		return false
	}
	sizes := map[string]joinedPair{}
	for _, p := range joined {
		like, seen := sizes[inLayer(p.Module)]
		if seen && (like.R != p.R || like.alpha != p.alpha) {
			return false
		}
		sizes[inLayer(p.Module)] = p
	}
	return true
}

// inLayer is what follows the layer's number in a name.
func inLayer(name string) string { return name[len(layerNumber.FindString(name)):] }

var layerNumber = regexp.MustCompile(`\A.*\.\d+\.`)
