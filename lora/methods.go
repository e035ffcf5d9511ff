package lora

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/torch/safetensors"
)

// A method is a peft_type beside LORA. Its adapters can only be merged.
type method struct {
	parts               []string // the ends of the names of a module's tensors
	shared              []string // tensors of all modules
	rank, alpha, tokens string   // fields, if not r, lora_alpha and trainable_token_indices
	fields              []string // whose effect the shapes of the tensors show or which only training uses
	// changes are what the tensors of a module do to the model.
	changes func(module string, t tensors, r *rule) ([]Change, error)
}

const (
	lnTuning = "LN_TUNING"
	oft      = "OFT"
)

var methods = map[string]method{
	"IA3": {parts: []string{".ia3_l"}, fields: []string{"feedforward_modules", "init_ia3_weights"}, changes: changeIA3},
	"VERA": {
		parts: []string{".vera_lambda_b", ".vera_lambda_d"}, shared: []string{veraA, veraB}, changes: changeVeRA,
		fields: []string{"r", "projection_prng_key", "save_projection", "vera_dropout", "d_initial", "init_weights"},
	},
	"ADALORA": {
		parts: []string{".lora_A", ".lora_B", ".lora_E"}, rank: "init_r", changes: changeAdaLoRA,
		fields: []string{"r", "rank_pattern", "target_r", "tinit", "tfinal", "deltaT", "beta1", "beta2", "orth_reg_weight", "total_step"},
	},
	"LOHA": {
		parts: []string{".hada_w1_a", ".hada_w1_b", ".hada_w2_a", ".hada_w2_b"}, alpha: "alpha", changes: changeLoHa,
		fields: []string{"rank_dropout", "module_dropout", "use_effective_conv2d", "init_weights"},
	},
	"LOKR": {
		parts: []string{".lokr_w1", ".lokr_w2", ".lokr_w1_a", ".lokr_w1_b", ".lokr_w2_a", ".lokr_w2_b"}, alpha: "alpha", changes: changeLoKr,
		fields: []string{"rank_dropout", "module_dropout", "use_effective_conv2d", "init_weights", "decompose_both", "decompose_factor", "rank_dropout_scale"},
	},
	oft:                {parts: []string{".oft_R.weight"}, fields: []string{"r", "oft_block_size", "module_dropout", "init_weights", "eps"}, changes: changeOFT},
	lnTuning:           {}, // norms in full
	"TRAINABLE_TOKENS": {tokens: "token_indices", fields: []string{"init_weights"}},
}

// lycoris are the methods with ranks by module, as LORA has them.
var lycoris = []string{"LOHA", "LOKR"}

// readMethod adds the changes of a method other than LoRA.
func (a *Adapter) readMethod(f *safetensors.File, r *rule, names []string, modules map[string]tensors) error {
	for _, module := range names {
		if !r.means(module) {
			return fmt.Errorf("module %s is not selected by target_modules (%s) and the fields that restrict them", module, r.TargetModules)
		}
		changes, err := methods[r.Method].changes(module, modules[module], r)
		if err != nil {
			return err
		}
		a.Changes = append(a.Changes, changes...)
	}
	if len(a.Changes)+len(a.Extra) == 0 {
		return fmt.Errorf("no tensor matches target_modules (%s)", r.TargetModules)
	}
	for _, name := range slices.Sorted(maps.Keys(a.Extra)) {
		if err := r.allows([]safetensors.Tensor{a.Extra[name]}); err != nil {
			return err
		}
	}
	return nil
}

// changeIA3 scales the outputs of a module, or the inputs if it is a feed-forward one (Liu et al. 2022, "Few-Shot
// Parameter-Efficient Fine-Tuning is Better and Cheaper than In-Context Learning", section 3.3).
func changeIA3(module string, t tensors, _ *rule) ([]Change, error) {
	scales, shape, err := t.read(".ia3_l", 2)
	if err != nil {
		return nil, err
	}
	n := len(scales)
	if shape[0] == 1 {
		return []Change{change(module+".weight", func(w []float32) {
			for i := range w {
				w[i] *= scales[i%n]
			}
		}, 0, n)}, nil
	}
	if shape[1] != 1 {
		return nil, fmt.Errorf("tensor %.120q has shape %v, want [out 1] or [1 in]", t.names[".ia3_l"], shape)
	}
	rows := func(w []float32) {
		for i := range w {
			w[i] *= scales[i/(len(w)/n)]
		}
	}
	bias := change(module+".bias", rows, n)
	bias.Optional = true
	return []Change{change(module+".weight", rows, n, 0), bias}, nil
}

const (
	veraA = "base_model.vera_A" // [r, in]
	veraB = "base_model.vera_B" // [out, r]
)

// changeVeRA adds diag(b)·B·diag(d)·A, where all modules share A and B and use as many columns and rows as they have
// (Kopiczko et al. 2024, "VeRA: Vector-based Random Matrix Adaptation", eq. 2).
func changeVeRA(module string, t tensors, _ *rule) ([]Change, error) {
	a, shapeA, err := readMatrix(t.file, veraA, 2)
	if err != nil {
		return nil, fmt.Errorf("%w; save the adapter with save_projection", err)
	}
	b, shapeB, err := readMatrix(t.file, veraB, 2)
	if err != nil {
		return nil, fmt.Errorf("%w; save the adapter with save_projection", err)
	}
	lambdaB, _, err := t.read(".vera_lambda_b", 1)
	if err != nil {
		return nil, err
	}
	lambdaD, _, err := t.read(".vera_lambda_d", 1)
	if err != nil {
		return nil, err
	}
	r, out, columns := len(lambdaD), len(lambdaB), shapeA[1]
	if r != shapeA[0] || r != shapeB[1] || out > shapeB[0] {
		return nil, fmt.Errorf("module %s: vectors of %d and %d elements do not fit the projections of shapes %v and %v", module, out, r, shapeB, shapeA)
	}
	c := change(module+".weight", func(w []float32) {
		p := Pair{Module: module, R: r, In: len(w) / out, Out: out, Scale: 1, B: slices.Clone(b[:out*r])}
		for i := range p.B {
			p.B[i] *= lambdaB[i/r]
		}
		for k := range r {
			for _, v := range a[k*columns : k*columns+p.In] {
				p.A = append(p.A, lambdaD[k]*v)
			}
		}
		p.MergeInto(w)
	}, out, 0)
	c.Most[1] = int64(columns)
	return []Change{c}, nil
}

// changeAdaLoRA adds B·diag(e)·A (Zhang et al. 2023, "AdaLoRA", eq. 3), which PEFT divides by the rank at the start.
func changeAdaLoRA(module string, t tensors, r *rule) ([]Change, error) {
	if e, ok := t.file.Lookup(t.names[".lora_E"]); ok && slices.Equal(e.Shape, []int64{0, 1}) {
		return []Change{change(module+".weight", func([]float32) {}, 0, 0)}, nil // it lost all its ranks
	}
	a, shapeA, err := t.read(".lora_A", 2)
	if err != nil {
		return nil, err
	}
	b, shapeB, err := t.read(".lora_B", 2)
	if err != nil {
		return nil, err
	}
	e, shapeE, err := t.read(".lora_E", 2)
	if err != nil {
		return nil, err
	}
	rank := shapeA[0]
	if shapeB[1] != rank || shapeE[0] != rank || shapeE[1] != 1 {
		return nil, fmt.Errorf("module %s: tensors of shapes %v, %v and %v do not fit each other", module, shapeA, shapeE, shapeB)
	}
	p := Pair{Module: module, R: rank, In: shapeA[1], Out: shapeB[0], Scale: r.Alpha / (float64(r.R) + 1e-5), A: a, B: b}
	for i := range a {
		a[i] *= e[i/p.In]
	}
	return []Change{change(module+".weight", p.MergeInto, p.Out, p.In)}, nil
}

// changeLoHa adds the elementwise product of two low-rank products (Hyeon-Woo et al. 2022, "FedPara", eq. 2).
func changeLoHa(module string, t tensors, r *rule) ([]Change, error) {
	_, scale := r.size(module)
	first, err := t.product(".hada_w1_a", ".hada_w1_b")
	if err != nil {
		return nil, err
	}
	second, err := t.product(".hada_w2_a", ".hada_w2_b")
	if err != nil {
		return nil, err
	}
	if first.rows != second.rows || first.columns != second.columns {
		return nil, fmt.Errorf("module %s: products of shapes [%d %d] and [%d %d] differ", module, first.rows, first.columns, second.rows, second.columns)
	}
	return []Change{change(module+".weight", func(w []float32) {
		for i := range w {
			w[i] += float32(scale * first.values[i] * second.values[i])
		}
	}, first.rows, first.columns)}, nil
}

// changeLoKr adds the Kronecker product of two matrices, each stored in full or as a low-rank product (Edalati et al. 2022,
// "KronA"; Yeh et al. 2024, "LyCORIS", section 3.2).
func changeLoKr(module string, t tensors, r *rule) ([]Change, error) {
	_, scale := r.size(module)
	first, err := t.factor(".lokr_w1")
	if err != nil {
		return nil, err
	}
	second, err := t.factor(".lokr_w2")
	if err != nil {
		return nil, err
	}
	out, in := first.rows*second.rows, first.columns*second.columns
	return []Change{change(module+".weight", func(w []float32) {
		for i := range w {
			row, column := i/in, i%in
			w[i] += float32(scale * first.at(row/second.rows, column/second.columns) * second.at(row%second.rows, column%second.columns))
		}
	}, out, in)}, nil
}

// matrix is a matrix [rows, columns], row-major.
type matrix struct {
	values        []float64
	rows, columns int
}

func (m matrix) at(row, column int) float64 { return m.values[row*m.columns+column] }

// factor is a matrix stored in full, or as a product of parts named _a and _b.
func (t tensors) factor(part string) (matrix, error) {
	if !t.has(part) {
		return t.product(part+"_a", part+"_b")
	}
	return t.matrix(part)
}

// matrix reads a part of two dimensions.
func (t tensors) matrix(part string) (matrix, error) {
	values, shape, err := t.read(part, 2)
	if err != nil {
		return matrix{}, err
	}
	return matrix{widened(values), shape[0], shape[1]}, nil
}

// product multiplies the matrices of two parts.
func (t tensors) product(left, right string) (matrix, error) {
	a, err := t.matrix(left)
	if err != nil {
		return a, err
	}
	b, err := t.matrix(right)
	if err == nil && a.columns != b.rows {
		err = fmt.Errorf("tensors %s of shapes [%d %d] and [%d %d] cannot be multiplied", strings.TrimPrefix(t.names[left], wrapper), a.rows, a.columns, b.rows, b.columns)
	}
	if err != nil {
		return b, err
	}
	return matrix{multiply(a.values, b.values, a.rows, a.columns, b.columns), a.rows, b.columns}, nil
}
