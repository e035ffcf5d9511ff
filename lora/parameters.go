package lora

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ExpertParameters are the tensors that target_parameters may name: those of all experts of a layer. They are in the order in
// which transformers declares them: PEFT puts one wrapper around another in this order.
var ExpertParameters = []string{"gate_up_proj", "down_proj"}

// wrapped comes between the names of a module and of what adapts it, once for each further wrapper around it.
const wrapped = ".base_layer"

// validateParameters reports what PEFT refuses beside target_parameters too.
func (c Config) validateParameters() error {
	if len(c.TargetParameters) == 0 {
		return nil
	}
	for _, target := range c.TargetParameters {
		if !slices.ContainsFunc(ExpertParameters, func(name string) bool { return ends(target, name) }) {
			return fmt.Errorf("target_parameters: %.120q is not supported; the tensors of experts end with %s", target, strings.Join(ExpertParameters, " and "))
		}
	}
	switch {
	case c.Dropout > 0:
		return errors.New("lora_dropout must be 0 with target_parameters")
	case c.DoRA || c.LoRABias || c.Method != "":
		return errors.New("target_parameters are for LoRA without use_dora and lora_bias")
	}
	return nil
}

// parametersOf are the adapted tensors of a module, the one in the innermost wrapper first.
func (c Config) parametersOf(module string) (names []string) {
	for _, leaf := range ExpertParameters {
		if !ends(module, "experts") {
			return nil
		}
		if name := module + "." + leaf; endsInOne(name, c.TargetParameters) {
			names = append(names, name)
		}
	}
	return names
}

// parameter is the tensor that the wrapper of a name adapts, "" if it is that of a linear module.
func (c Config) parameter(wrapper string) string {
	module := wrapper
	for strings.HasSuffix(module, wrapped) {
		module = strings.TrimSuffix(module, wrapped)
	}
	names := c.parametersOf(module)
	if at := len(names) - 1 - strings.Count(wrapper[len(module):], wrapped); at >= 0 {
		return names[at]
	}
	return ""
}

// wrapper is what files call the wrapper of an expert's tensor.
func (c Config) wrapper(parameter string) string {
	module := parameter[:strings.LastIndexByte(parameter, '.')]
	names := c.parametersOf(module)
	return module + strings.Repeat(wrapped, len(names)-1-slices.Index(names, parameter))
}

// adapts reports whether a linear module, or a tensor of experts, is adapted.
func (r *rule) adapts(name string, experts int) bool {
	if experts > 0 {
		return endsInOne(name, r.TargetParameters)
	}
	return r.means(name)
}

// OfExpert is the pair of one expert, for one of the parts that its rows of B are divided into: rows part, part+parts, part+2·parts …
// if woven, else a block of consecutive rows.
func (p Pair) OfExpert(expert, part, parts int, woven bool) Pair {
	own := Pair{Module: p.Module, R: p.R, In: p.In, Out: p.Out / parts, Scale: p.Scale, A: p.A[expert*p.R*p.In : (expert+1)*p.R*p.In]}
	for o := range own.Out {
		row := part*own.Out + o
		if woven {
			row = o*parts + part
		}
		for r := range p.R {
			own.B = append(own.B, p.B[(row*p.R+r)*p.Experts+expert])
		}
	}
	return own
}
