package lora

import (
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

// The expectations are those of PEFT's check_target_module_exists.
func TestMeans(t *testing.T) {
	const query, mlp = "model.layers.1.self_attn.q_proj", "model.layers.10.mlp.up_proj"
	names := func(list ...string) Modules { return Modules{Names: list} }
	tests := []struct {
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
	}
	for _, tt := range tests {
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
			if rank, scale := r.size(name); rank != tt.rank || scale != tt.scale {
				t.Errorf("rank %d, scale %g; want %d, %g", rank, scale, tt.rank, tt.scale)
			}
		})
	}
}
