package lora

import (
	"cmp"
	"math"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/torch/safetensors"
)

// The expectations are those of PEFT's check_target_module_exists.
func TestMeans(t *testing.T) {
	const query, mlp = "model.layers.1.self_attn.q_proj", "model.layers.10.mlp.up_proj"
	names := func(list ...string) Modules { return Modules{Names: list} }
	for _, tt := range []struct {
		name       string
		c          Config
		query, mlp bool
	}{
		{"ending", Config{TargetModules: names("q_proj", "absent")}, true, false},
		{"ending not at a dot", Config{TargetModules: names("_proj")}, false, false},
		{"full name", Config{TargetModules: names(mlp)}, false, true},
		{"names are no expressions", Config{TargetModules: names(".*")}, false, false},
		{"expression", Config{TargetModules: Modules{Pattern: `.*\.(q_proj|k_proj)`}}, true, false},
		{"expression of a part", Config{TargetModules: Modules{Pattern: "q_proj"}}, false, false},
		{"alternatives match as a whole", Config{TargetModules: Modules{Pattern: "model|up_proj"}}, false, false},
		{"anchored expression", Config{TargetModules: Modules{Pattern: `^model\..*mlp\.up_proj$`}}, false, true},
		{"all", Config{TargetModules: Modules{Pattern: "All-linear"}}, true, true},
		{"all but an ending", Config{TargetModules: Modules{Pattern: "all-linear"}, ExcludeModules: names("mlp.up_proj")}, true, false},
		{"all but an expression", Config{TargetModules: Modules{Pattern: "all-linear"}, ExcludeModules: Modules{Pattern: `.*\.1\..*`}}, false, true},
		{"whole modules are not adapted", Config{TargetModules: Modules{Pattern: "all-linear"}, ModulesToSave: []string{"mlp"}}, true, false},
		{"layer", Config{TargetModules: names("q_proj", "up_proj"), Layers: []int{1}}, true, false},
		{"layers", Config{TargetModules: names("q_proj", "up_proj"), Layers: []int{0, 10}, LayersPattern: []string{"h", "layers"}}, false, true},
		{"layers elsewhere", Config{TargetModules: names("q_proj", "up_proj"), Layers: []int{1, 10}, LayersPattern: []string{"h"}}, false, false},
		{"full names are of any layer", Config{TargetModules: names("q_proj", mlp), Layers: []int{1}}, true, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := must.Get(tt.c.rule())(t)
			expect.Same(t, tt.query, r.means(query), "%s", query)
			expect.Same(t, tt.mlp, r.means(mlp), "%s", mlp)
		})
	}
}

// The expectations are those of PEFT's get_pattern_key and update_layer.
func TestSize(t *testing.T) {
	const name = "model.layers.1.self_attn.q_proj"
	ranks := func(p ...Pattern[int]) []Pattern[int] { return p }
	alphas := func(p ...Pattern[float64]) []Pattern[float64] { return p }
	tests := []struct {
		name  string
		c     Config
		rank  int
		scale float64
	}{
		{"no pattern", Config{}, 4, 2},
		{"rank", Config{RankPattern: ranks(Pattern[int]{"q_proj", 16})}, 16, 0.5},
		{"alpha", Config{AlphaPattern: alphas(Pattern[float64]{"q_proj", 2})}, 4, 0.5},
		{"both, stabilised", Config{RSLoRA: true, RankPattern: ranks(Pattern[int]{"q_proj", 16}), AlphaPattern: alphas(Pattern[float64]{name, 12})}, 16, 3},
		{"not at a dot", Config{RankPattern: ranks(Pattern[int]{"proj", 16})}, 4, 2},
		{"not at the end", Config{RankPattern: ranks(Pattern[int]{"self_attn", 16})}, 4, 2},
		{"the first counts", Config{RankPattern: ranks(Pattern[int]{"k_proj", 1}, Pattern[int]{`self_attn\..*`, 2}, Pattern[int]{"q_proj", 16})}, 2, 4},
		{"from the beginning", Config{RankPattern: ranks(Pattern[int]{`^model\.layers\.\d\..*`, 2})}, 2, 4},
		{"from the beginning, within", Config{RankPattern: ranks(Pattern[int]{"^layers.1.self_attn.q_proj", 2})}, 4, 2},
		{"alternatives", Config{RankPattern: ranks(Pattern[int]{"k_proj|q_proj", 2})}, 2, 4},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.c.R, tt.c.Alpha = 4, 8
			r := must.Get(tt.c.rule())(t)
			rank, scale := r.size(name)
			expect.True(t, rank == tt.rank && scale == tt.scale, "rank %d, scale %g; want %d, %g", rank, scale, tt.rank, tt.scale)
		})
	}
}

// storedAdapter writes an adapter of one module, plus extra tensors.
func storedAdapter(t *testing.T, targets string, more ...safetensors.Tensor) string {
	t.Helper()
	dir := must.Folder(t, map[string]string{ConfigFile: `{"peft_type":"LORA","r":1,"lora_alpha":2,"target_modules":` + targets + `,"task_type":"CAUSAL_LM"}`})
	tensors := []safetensors.Tensor{
		safetensors.FromFloat32s(wrapper+"model.a.q_proj.lora_A.weight", []int64{1, 2}, []float32{1, 1}),
		safetensors.FromFloat32s(wrapper+"model.a.q_proj.lora_B.weight", []int64{2, 1}, []float32{1, 1}),
	}
	must.Do(t, safetensors.Write(filepath.Join(dir, WeightsFile), append(tensors, more...), nil))
	return dir
}

func table(name string, rows, columns int64, values ...float32) safetensors.Tensor {
	return safetensors.FromFloat32s(wrapper+name, []int64{rows, columns}, values)
}

func TestStoredTablesRefused(t *testing.T) {
	a, b := table("model.embed_tokens.lora_embedding_A", 1, 3, 0, 1, 2), table("model.embed_tokens.lora_embedding_B", 2, 1, 1, 10)
	tests := []struct {
		name, targets, want string
		tensors             []safetensors.Tensor
	}{
		{"no base", `["q_proj","embed_tokens"]`, `an embedding whose weights are not in the file; save the adapter with PEFT's save_embedding_layers=True`, []safetensors.Tensor{a, b}},
		{"not a target", `["q_proj"]`, "belongs to no module of target_modules (q_proj)", []safetensors.Tensor{a, b}},
		{"other table", `["q_proj","embed_tokens"]`, "has shape [2 3], but its adapter is for [3 2]", []safetensors.Tensor{a, b, table("model.embed_tokens.base_layer.weight", 2, 3, 1, 2, 3, 4, 5, 6)}},
		{"a table of nothing", `["q_proj"]`, "belongs neither to a LoRA pair nor to modules_to_save", []safetensors.Tensor{table("model.norm.base_layer.weight", 1, 2, 1, 2)}},
		{"no table", `["q_proj"]`, "belongs neither to a LoRA pair nor to modules_to_save", []safetensors.Tensor{table("model.norm.weight", 1, 2, 1, 2)}},
	}
	for _, tt := range tests {
		expect.Failure(Load(storedAdapter(t, tt.targets, tt.tensors...)))(t, tt.want)
	}
}

// TestOneChange: an adapter may change one module alone, and not none.
func TestOneChange(t *testing.T) {
	for _, c := range []struct {
		targets, want string
		rows          int64
	}{{`["q_proj"]`, "", 2}, {`["k_proj"]`, "model.a.q_proj is not selected", 2}, {`["q_proj"]`, "[2 2] and [3 2] differ", 3}} {
		dir := must.Folder(t, map[string]string{ConfigFile: `{"peft_type":"LOHA","r":1,"alpha":1,"target_modules":` + c.targets + `,"task_type":"CAUSAL_LM"}`})
		must.Do(t, safetensors.Write(filepath.Join(dir, WeightsFile), []safetensors.Tensor{
			table("model.a.q_proj.hada_w1_a", 2, 1, 1, 2), table("model.a.q_proj.hada_w1_b", 1, 2, 1, 2), table("model.a.q_proj.hada_w2_a", c.rows, 1, make([]float32, c.rows)...), table("model.a.q_proj.hada_w2_b", 1, 2, 1, 2),
		}, nil))
		a, err := Load(dir)
		expect.True(t, (err == nil) == (c.want == "") && (err != nil || len(a.Changes) == 1) && (err == nil || expect.Names(err, c.want)), "%+v: %d changes, %v", c, len(a.Changes), err)
	}
	dir := must.Folder(t, map[string]string{ConfigFile: `{"peft_type":"ADALORA","init_r":1,"lora_alpha":1,"target_modules":["q_proj"],"task_type":"CAUSAL_LM"}`})
	adapted := func(rank int64, a, b, e []float32) Change {
		must.Do(t, safetensors.Write(filepath.Join(dir, WeightsFile), []safetensors.Tensor{
			table("model.a.q_proj.lora_A", rank, 2, a...), table("model.a.q_proj.lora_B", 3, rank, b...), table("model.a.q_proj.lora_E", rank, 1, e...),
		}, nil))
		all := must.Get(Load(dir))(t).Changes
		expect.Require(t, len(all) == 1 && all[0].Fits([]int64{3, 2}) == nil, "rank %d: %+v", rank, all)
		return all[0]
	}
	w := make([]float32, 6)
	adapted(0, nil, nil, nil).Apply(w) // it lost all its ranks
	expect.Equal(t, make([]float32, 6), w)
	adapted(1, []float32{1, 2}, []float32{3, 4, 5}, []float32{7}).Apply(w)
	for i, want := range []float64{21, 42, 28, 56, 35, 70} {
		expect.Same(t, float32(1/(1+1e-5)*want), w[i], "element %d", i)
	}
}

func TestRotation(t *testing.T) {
	const n = 3
	q := skew([]float32{0.2, -0.1, 0.3}, n)
	exact := rotation(q, n, 0)
	for i := range n {
		for j := range n {
			dot, want := 0.0, 0.0
			for k := range n {
				dot += exact[i*n+k] * exact[j*n+k]
			}
			if i == j {
				want = 1
			}
			expect.True(t, math.Abs(dot-want) <= 1e-12, "rows %d and %d: %g", i, j, dot)
		}
	}
	// The series has the other sign, and its last term has half the factor of the others.
	want, power := make([]float64, n*n), []float64{1, 0, 0, 0, 1, 0, 0, 0, 1}
	for terms := range 40 {
		factor := 2.0
		if terms == 0 {
			factor = 1
		}
		for i := range want {
			want[i] += factor * power[i]
		}
		next := multiply(power, q, n, n, n)
		for i, last := range next {
			if terms >= 2 { // as PEFT, two terms have no such last one, and three are four
				expect.True(t, math.Abs(rotation(q, n, terms+2)[i]-want[i]-last) <= 1e-12, "%d terms: element %d", terms+2, i)
			} else {
				expect.True(t, math.Abs(rotation(q, n, terms+1)[i]-want[i]) <= 1e-12, "%d terms: element %d", terms+1, i)
			}
		}
		power = next
	}
	expect.Equal(t, rotation(q, n, 4), rotation(q, n, 3), "three terms and four")
	for i := range n {
		for j := range n {
			expect.True(t, math.Abs(want[i*n+j]-exact[j*n+i]) <= 1e-12, "the series does not end at the exact rotation")
		}
	}
}

func TestNamesByNumber(t *testing.T) {
	names := []string{"a.9", "a.10", "a.10.q", "a.b", "a.cc", "b"}
	for i, x := range names {
		for j, y := range names {
			expect.Same(t, cmp.Compare(i, j), cmp.Compare(compareNames(x, y), 0), "%s and %s", x, y)
		}
	}
}

// TestOrthogonalStart: the product is 0 up to rounding, and the elements of both matrices have the variance of PEFT's, 1/200.
func TestOrthogonalStart(t *testing.T) {
	for _, r := range []int{2, 8, 64} {
		const in, out = 96, 160
		p := InitOrthogonal("m", in, out, r, 2, rand.New(rand.NewPCG(1, uint64(r))))
		expect.True(t, p.check() == nil && p.R == r && p.Scale == 2, "%v", p.check())
		square := func(m []float32) (mean float64) {
			for _, x := range m {
				mean += float64(x) * float64(x) / float64(len(m))
			}
			return mean
		}
		a, b := square(p.A)*200, square(p.B)*200
		expect.True(t, math.Abs(a-1) < 0.25 && math.Abs(b-1) < 0.25, "rank %d: mean squares are %.3f and %.3f of PEFT's", r, a, b)
		w := make([]float32, out*in)
		p.MergeInto(w)
		expect.True(t, math.Sqrt(square(w)) < 1e-6, "rank %d: the product is %g on average", r, math.Sqrt(square(w)))
	}
}
