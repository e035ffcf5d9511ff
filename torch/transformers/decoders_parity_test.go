package transformers_test

import (
	"encoding/binary"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/lora"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/safetensors"
	"github.com/rltrain/rltrain/torch/torchtest"
	"github.com/rltrain/rltrain/torch/transformers"
)

// causalCase is a folder written by scripts/fixtures/causal.py, with the results of transformers and PEFT.
type causalCase struct {
	*transformers.Causal
	expected  *safetensors.File
	sequences [][]int32
}

func causalCases(t *testing.T) []string {
	t.Helper()
	entries := must.Get(os.ReadDir(filepath.Join("testdata", "causal")))(t)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// eachCausal tests every fixture, as a subtest of its name.
func eachCausal(t *testing.T, o transformers.CausalOptions, test func(t *testing.T, name string, c causalCase)) {
	t.Helper()
	for _, name := range causalCases(t) {
		t.Run(name, func(t *testing.T) { test(t, name, openCausal(t, name, o)) })
	}
}

func openCausal(t *testing.T, name string, o transformers.CausalOptions) causalCase {
	t.Helper()
	torchtest.NoLeaks(t)
	dir := filepath.Join("testdata", "causal", name)
	c := causalCase{Causal: must.Open(transformers.LoadCausal(dir, o))(t), expected: must.Open(safetensors.Open(filepath.Join(dir, "expected.safetensors")))(t)}
	tokens := c.ids(t, "tokens")
	for _, n := range c.ids(t, "lengths") {
		c.sequences = append(c.sequences, tokens[:n])
		tokens = tokens[n:]
	}
	return c
}

func (c causalCase) ids(t *testing.T, name string) []int32 {
	t.Helper()
	data := must.Get(c.expected.Bytes(name))(t)
	ids := make([]int32, len(data)/4)
	for i := range ids {
		ids[i] = int32(binary.LittleEndian.Uint32(data[4*i:]))
	}
	return ids
}

func (c causalCase) want(t *testing.T, name string) []float32 {
	t.Helper()
	return must.Get(c.expected.Float32s(name))(t)
}

// logits are the logits of every token, [N, V], by plain operators.
func (c causalCase) logits(s *torch.Scope, sequences [][]int32, adapter bool) torch.Tensor {
	hidden, _ := s.Hidden(c.Model, torch.Pack(sequences), torch.Pass{Adapter: adapter})
	return c.head(s, hidden)
}

func (c causalCase) head(s *torch.Scope, hidden torch.Tensor) torch.Tensor {
	weight := c.Head
	if !c.Trainable {
		wide, err := c.Head.To(torch.F32)
		if err != nil {
			panic(err)
		}
		defer wide.Close()
		weight = wide
	}
	bias := s.Floats(make([]float32, c.Config.VocabSize), int64(c.Config.VocabSize))
	if c.HeadBias != nil {
		bias = c.HeadBias.T()
	}
	logits := s.Linear(hidden, weight.T(), bias)
	if limit := c.Config.Core().LogitSoftcap; limit > 0 {
		logits = s.Scale(s.Tanh(s.Scale(logits, 1/limit)), limit)
	}
	return logits
}

func (c causalCase) read(t *testing.T, sequences [][]int32, adapter bool) (data []float32) {
	t.Helper()
	torchtest.Do(t, torch.NoGrad, func(s *torch.Scope) { data = s.Read(c.logits(s, sequences, adapter)) })
	return data
}

// logitsLimit is how far logits of a fixture may be apart. Delta rules multiply rounding: with eight seeds of qwen3_5_text_biased,
// transformers is 1e-5 to 1.7e-4 from its results in float64, AVX512 1.3e-5 to 1.8e-4 and the base kernels 8e-6 to 1.4e-4.
func logitsLimit(name string) float64 {
	if strings.HasPrefix(name, "qwen3_5") {
		return 2 * tolerance
	}
	return tolerance
}

func TestCausalLogitsEqualTransformers(t *testing.T) {
	eachCausal(t, transformers.CausalOptions{DType: "fp32"}, func(t *testing.T, name string, c causalCase) {
		packed := c.read(t, c.sequences, false)
		torchtest.Near(t, packed, c.want(t, "logits"), logitsLimit(name), "logits")
		within := 1e-5
		if strings.HasPrefix(name, "qwen3_5") { // delta rules: up to 2.2e-5 with AVX512, 5.5e-5 with the base kernels
			within = tolerance
		}
		vocab := c.Config.VocabSize
		rows := []int64{int64(len(packed)/vocab - 1), 0, 3}
		var wanted []float32
		for _, row := range rows {
			wanted = append(wanted, packed[int(row)*vocab:][:vocab]...)
		}
		torchtest.Do(t, torch.NoGrad, func(s *torch.Scope) {
			hidden, _ := s.Hidden(c.Model, torch.Pack(c.sequences), torch.Pass{Rows: rows})
			torchtest.Near(t, s.Read(c.head(s, hidden)), wanted, within, "some rows alone")
		})
	})
}

// TestCausalTokensEqualTransformers: the engine generates the same tokens, from its cache; so do full texts where it rotates tokens
// for another length.
func TestCausalTokensEqualTransformers(t *testing.T) {
	eachCausal(t, transformers.CausalOptions{DType: "fp32"}, func(t *testing.T, _ string, c causalCase) {
		want, ids := c.ids(t, "greedy"), slices.Clone(c.sequences[1])
		if c.switches() {
			for range want {
				logits := c.read(t, [][]int32{ids}, false)
				last := logits[len(logits)-c.Config.VocabSize:]
				ids = append(ids, int32(slices.Index(last, slices.Max(last))))
			}
		} else {
			for _, e := range generated(t, c.Causal, c.sequences[1], len(want), 0) {
				ids = append(ids, e.Token)
			}
		}
		expect.Equal(t, want, ids[len(c.sequences[1]):])
	})
}

// adapt puts PEFT's pairs on all linear layers and experts.
func (c causalCase) adapt(t *testing.T) map[string]*torch.Var {
	t.Helper()
	return c.adaptThese(t, append(c.Config.Linears(), c.Config.ExpertLinears()...))
}

func (c causalCase) adaptThese(t *testing.T, linears []transformers.Linear) map[string]*torch.Var {
	t.Helper()
	params := map[string]*torch.Var{}
	for _, linear := range linears {
		module := linear.Name
		if linear.Experts > 0 { // both tensors of a layer have pairs, one wrapped by the other
			module = strings.TrimSuffix(strings.Replace(module, ".gate_up_proj", ".base_layer", 1), ".down_proj")
		}
		var pair [2]*torch.Var
		for i, matrix := range []string{"lora_A", "lora_B"} {
			key := module + "." + matrix + ".weight"
			entry, ok := c.expected.Lookup(key)
			expect.Require(t, ok, "no %s in the fixture", key)
			v := must.Open(torch.Parameter(c.want(t, key), entry.Shape...))(t)
			params[key], pair[i] = v, v
		}
		must.Do(t, c.Model.Adapt(linear.Layer, pair[0], pair[1], nil, 3.0/2))
	}
	return params
}

// meanLoss is the mean cross-entropy of all tokens but the first of each text.
func (c causalCase) meanLoss(s *torch.Scope, adapter bool) torch.Tensor {
	var rows, targets []int64
	row := int64(0)
	for _, ids := range c.sequences {
		for i, id := range ids {
			if i > 0 {
				rows, targets = append(rows, row-1), append(targets, int64(id))
			}
			row++
		}
	}
	n := int64(len(rows))
	logits := s.Rows(c.logits(s, c.sequences, adapter), s.Ints(rows, n))
	return s.Scale(s.Sum(s.Pick(s.LogSoftmax(logits), s.Ints(targets, n))), -1/float64(n))
}

func TestCausalAdapterGradientsEqualPEFT(t *testing.T) {
	eachCausal(t, transformers.CausalOptions{DType: "fp32"}, func(t *testing.T, name string, c causalCase) {
		params := c.adapt(t)
		torchtest.Do(t, torch.Train, func(s *torch.Scope) {
			loss := c.meanLoss(s, true)
			torchtest.Near(t, s.Read(loss), c.want(t, "loss"), tolerance, "loss")
			s.Backward(loss)
			compareGradients(t, s, params, c.want)
		})
		torchtest.Near(t, c.read(t, c.sequences, false), c.want(t, "logits"), logitsLimit(name), "without the adapter, logits")
	})
}

// TestCausalGradientsEqualTransformers compares gradients of all weights by two sums of each: of gradient times weight and
// of squares. Fixtures of families since SmolLM3 have them.
func TestCausalGradientsEqualTransformers(t *testing.T) {
	compared := 0
	eachCausal(t, transformers.CausalOptions{Trainable: true}, func(t *testing.T, _ string, c causalCase) {
		if _, ok := c.expected.Lookup("whole"); !ok {
			return
		}
		compared++
		var specs []transformers.TensorSpec
		for _, spec := range c.Config.TensorNames() {
			if spec.Group != "tied" && c.Trains(spec.Name) {
				specs = append(specs, spec)
			}
		}
		// Those of all experts are one where files have them in one.
		files := must.Get(safetensors.OpenModel(c.Dir))(t)
		names := must.Get(c.Config.Resolve(files))(t)
		files.Close()
		name := func(s transformers.TensorSpec) string { return names[s.Name] }
		slices.SortStableFunc(specs, func(a, b transformers.TensorSpec) int { return strings.Compare(name(a), name(b)) })
		want := c.want(t, "whole")
		torchtest.Do(t, torch.Train, func(s *torch.Scope) {
			s.Backward(c.meanLoss(s, false))
			i := -1
			var dot, squares, weights float64
			for at, spec := range specs {
				v := c.Weights[spec.Name]
				grad, ok := s.Grad(v)
				expect.Require(t, ok || strings.Contains(spec.Name, ".experts.") || strings.Contains(spec.Name, ".router_bias."), "%s has no gradient", spec.Name)
				if at == 0 || name(spec) != name(specs[at-1]) {
					i++
					dot, squares, weights = 0, 0, 0
				}
				weight := s.Read(v.T())
				if !ok { // no token passed the expert
					grad = s.Scale(v.T(), 0)
				}
				for j, g := range s.Read(grad) {
					dot += float64(g) * float64(weight[j])
					squares += float64(g) * float64(g)
					weights += float64(weight[j]) * float64(weight[j])
				}
				if at+1 < len(specs) && name(spec) == name(specs[at+1]) {
					continue
				}
				// A bias of keys shifts all scores of a query equally, and the only expert of a token has weight 1: the
				// gradient is rounding alone.
				if (strings.HasSuffix(spec.Name, ".k.bias") || strings.Contains(spec.Name, ".router")) && squares < 1e-12 {
					continue
				}
				limit := 2*tolerance*math.Sqrt(squares*weights) + 1e-9
				if math.Abs(dot-float64(want[2*i])) > limit || math.Abs(squares/float64(want[2*i+1])-1) > 2*tolerance { // not NaN, of an expert without tokens
					t.Errorf("%s: gradient·weight %g and |gradient|² %g, want %g and %g", name(spec), dot, squares, want[2*i], want[2*i+1])
				}
			}
			expect.Equal(t, len(want), 2*(i+1))
			for name, v := range c.Weights {
				if strings.HasSuffix(name, ".scalar.weight") { // a buffer of transformers'
					_, trained := s.Grad(v)
					expect.True(t, !trained, "%s is trained", name)
				}
			}
		})
	})
	expect.True(t, compared >= 40, "only %d fixtures have gradients of all weights", compared)
}

// TestCausalAdapterStepsEqualPEFT trains the adapter with AdamW, as PEFT's with torch's.
func TestCausalAdapterStepsEqualPEFT(t *testing.T) {
	eachCausal(t, transformers.CausalOptions{DType: "fp32"}, func(t *testing.T, _ string, c causalCase) {
		if _, ok := c.expected.Lookup("losses"); !ok {
			return
		}
		params := slices.Collect(maps.Values(c.adapt(t)))
		adam := torch.NewOptimizer(torch.AdamEps, torch.ParamGroup{Params: params, WeightDecay: 0.01})
		defer adam.Close()
		var losses []float32
		for range c.want(t, "losses") {
			torchtest.Do(t, torch.Train, func(s *torch.Scope) {
				loss := c.meanLoss(s, true)
				losses = append(losses, s.Read(loss)...)
				s.Backward(loss)
			})
			must.Get(adam.Step([]float64{0.02}, 0))(t)
		}
		for i, want := range c.want(t, "losses") {
			expect.True(t, math.Abs(float64(losses[i]-want)) <= 1e-5*max(1, math.Abs(float64(want))), "losses %v, want %v", losses, c.want(t, "losses"))
		}
	})
}

// TestExpertLoad: the loss that balances experts equals transformers' of the second text, and its gradient that of blocks that
// are computed again, also where few rows are wanted.
func TestExpertLoad(t *testing.T) {
	compared := 0
	eachCausal(t, transformers.CausalOptions{Trainable: true}, func(t *testing.T, _ string, c causalCase) {
		if _, ok := c.expected.Lookup("balance"); !ok {
			return
		}
		compared++
		experts := int64(c.Config.NumExperts)
		var router *torch.Var
		for key, v := range c.Weights {
			if strings.HasSuffix(key, ".router.weight") {
				router = v
			}
		}
		var grads [2][]float32
		for i, again := range []bool{false, true} {
			torchtest.Do(t, torch.Train, func(s *torch.Scope) {
				var load torch.Tensor
				hidden, _ := s.Hidden(c.Model, torch.Pack(c.sequences[1:2]), torch.Pass{Load: &load, Checkpoint: again, Rows: []int64{3}})
				expect.Equal(t, len(s.Read(hidden)), c.Config.HiddenSize)
				sums := s.Read(load)
				tokens := float32(0)
				for _, p := range sums[:experts] {
					tokens += p
				}
				loss := s.Scale(s.Sum(s.Mul(s.Rows(load, s.Ints([]int64{0}, 1)), s.Floats(sums[experts:], 1, experts))), float64(float32(experts)/(tokens*tokens)))
				torchtest.Near(t, s.Read(loss), c.want(t, "balance"), tolerance, "loss")
				s.Backward(loss)
				grad, ok := s.Grad(router)
				expect.Require(t, ok, "the router has no gradient")
				grads[i] = s.Read(grad)
			})
			must.Do(t, torch.ZeroGrad([]*torch.Var{router}))
		}
		torchtest.Near(t, grads[1], grads[0], 1e-6, "gradients of a router")
	})
	expect.True(t, compared >= 20, "only %d fixtures have the loss", compared)
}

// TestTargets: all targets select every linear module of each family, and each default target one of every layer.
func TestTargets(t *testing.T) {
	var configs []*transformers.Config
	for _, name := range causalCases(t) {
		configs = append(configs, must.Get(transformers.LoadCausalConfig(filepath.Join("testdata", "causal", name)))(t))
	}
	for _, name := range encoderCases(t) {
		configs = append(configs, must.Get(transformers.LoadConfig(filepath.Join("testdata", name)))(t))
	}
	for _, config := range configs {
		var names []string
		for _, l := range config.Linears() {
			names = append(names, l.Name)
		}
		targets, layers := config.AllTargets(), config.NumHiddenLayers
		if config.ModelType == "albert" { // whose layers are one
			layers = 1
		}
		selected, err := lora.Match(names, targets)
		diff := cmp.Diff(names, selected)
		mixed := strings.HasPrefix(config.ModelType, "lfm2") || strings.HasPrefix(config.ModelType, "gemma4") || strings.HasPrefix(config.ModelType, "gemma3n") || strings.HasPrefix(config.ModelType, "qwen3_5") || strings.HasPrefix(config.ModelType, "qwen") && strings.HasSuffix(config.ModelType, "_moe")
		alike := mixed || len(targets)*layers == len(names)
		expect.True(t, err == nil && diff == "" && alike, "%s: %v select other modules than all (error %v)\n%s", config.ModelType, targets, err, diff)
		for _, target := range config.DefaultTargets() {
			want := layers
			if config.ModelType == "bert" && target == "output.dense" { // and attention.output.dense
				want *= 2
			}
			some, err := lora.Match(names, []string{target})
			expect.True(t, len(some) == want || mixed && len(some) > 0, "%s: %s means %d modules of %d layers, %v", config.ModelType, target, len(some), layers, err)
		}
	}
}
