package lora_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/lora"
	"github.com/rltrain/rltrain/torch/safetensors"
)

// experts are the tensors of an adapter of rank 1 on two experts of width 3 in a layer of width 2, by the ends of their names. Their
// values count up.
func experts(parts ...string) map[string][]int64 {
	shapes := map[string][]int64{}
	for e := range 2 {
		for _, part := range parts {
			in, out := int64(2), int64(3)
			if part == "down_proj" || part == "w2" {
				in, out = out, in
			}
			name := fmt.Sprintf("mlp.experts.%d.%s", e, part)
			shapes[name+".lora_A.weight"], shapes[name+".lora_B.weight"] = []int64{1, in}, []int64{out, 1}
		}
	}
	return shapes
}

func loadExperts(t *testing.T, config string, shapes map[string][]int64) (lora.Adapter, error) {
	t.Helper()
	var tensors []safetensors.Tensor
	for name, shape := range shapes {
		values := make([]float32, shape[0]*shape[1])
		for i := range values {
			values[i] = float32(10*len(name)%7 + i)
		}
		tensors = append(tensors, safetensors.FromFloat32s("base_model.model.model.layers.0."+name, shape, values))
	}
	dir := must.Folder(t, map[string]string{lora.ConfigFile: config})
	must.Do(t, safetensors.Write(filepath.Join(dir, lora.WeightsFile), tensors, nil))
	return lora.Load(dir)
}

// TestAdaptersOfSingleExperts: what does not make a pair for all experts is refused by the name of a tensor.
func TestAdaptersOfSingleExperts(t *testing.T) {
	const all = `{"peft_type":"LORA","r":1,"lora_alpha":2,"lora_dropout":0.1,"target_modules":["gate_proj","up_proj","down_proj","w1"]%s}`
	plain := fmt.Sprintf(all, "")
	a := must.Get(loadExperts(t, plain, experts("gate_proj", "up_proj", "down_proj")))(t)
	want := lora.Config{R: 1, Alpha: 2, TargetParameters: []string{"mlp.experts.down_proj", "mlp.experts.gate_up_proj"}, BaseHash: a.Config.BaseHash,
		RankPattern:  []lora.Pattern[int]{{Key: `mlp\.experts\.gate_up_proj`, Value: 2}},
		AlphaPattern: []lora.Pattern[float64]{{Key: `mlp\.experts\.gate_up_proj`, Value: 4}}}
	expect.Equal(t, want, a.Config)
	expect.True(t, len(a.Pairs) == 2 && a.Pairs[1].R == 2 && a.Pairs[1].Out == 6 && a.Pairs[1].Scale == 2, "pairs: %v", a.Pairs)

	without := func(names ...string) map[string][]int64 {
		shapes := experts("gate_proj", "up_proj", "down_proj")
		for _, name := range names {
			delete(shapes, "mlp.experts."+name+".lora_A.weight")
			delete(shapes, "mlp.experts."+name+".lora_B.weight")
		}
		return shapes
	}
	with := func(shapes map[string][]int64, name string, a, b []int64) map[string][]int64 {
		shapes["mlp.experts."+name+".lora_A.weight"], shapes["mlp.experts."+name+".lora_B.weight"] = a, b
		return shapes
	}
	for _, tt := range []struct {
		name, config string
		shapes       map[string][]int64
		want         string
	}{
		{"one expert's gate", plain, without("1.gate_proj"), `experts.1.gate_proj.lora_A.weight" is missing; the adapter has 2 experts`},
		{"no up", plain, without("0.up_proj", "1.up_proj"), `experts.0.up_proj.lora_A.weight" is missing; the adapter has 2 experts, and all of a layer's gate_proj and up_proj must be adapted`},
		{"far too many experts", plain, with(without(), "999999.up_proj", []int64{1, 2}, []int64{3, 1}), `experts.2.down_proj.lora_A.weight" is missing; the adapter has 1000000 experts`},
		{"another rank in the file", plain, with(without(), "1.up_proj", []int64{2, 2}, []int64{3, 2}), `experts.1.up_proj.lora_A.weight" has shape [2 2], want [1 in]`},
		{"another rank", fmt.Sprintf(all, `,"rank_pattern":{"experts.1.up_proj":2}`), with(without(), "1.up_proj", []int64{2, 2}, []int64{3, 2}), `experts.1.up_proj.lora_A.weight" has rank 2 and scale 1, but model.layers.0.mlp.experts.0.gate_proj has 1 and 2`},
		{"another scale", fmt.Sprintf(all, `,"alpha_pattern":{"gate_proj":3}`), without(), `experts.0.up_proj.lora_A.weight" has rank 1 and scale 2, but model.layers.0.mlp.experts.0.gate_proj has 1 and 3`},
		{"another width", plain, with(without(), "1.down_proj", []int64{1, 4}, []int64{2, 1}), `experts.1.down_proj.lora_A.weight" is for a weight of shape [2 4], but model.layers.0.mlp.experts.0.down_proj is for [2 3]`},
		{"two spellings", plain, with(without(), "0.w1", []int64{1, 2}, []int64{3, 1}), `name the same experts differently`},
		{"no target", fmt.Sprintf(all, `,"exclude_modules":["1.up_proj"]`), without(), `experts.1.up_proj.lora_A.weight" belongs to no module of target_modules`},
		{"DoRA", fmt.Sprintf(all, `,"use_dora":true`), without(), `experts.0.down_proj.lora_A.weight" adapts one expert; with use_dora or lora_bias that is not supported`},
		{"both ways", `{"peft_type":"LORA","r":1,"target_modules":["gate_proj","up_proj","down_proj"],"target_parameters":["down_proj"]}`, without(), `but target_parameters adapt all experts at once (down_proj)`},
	} {
		t.Run(tt.name, func(t *testing.T) { expect.Failure(loadExperts(t, tt.config, tt.shapes))(t, tt.want) })
	}
}
