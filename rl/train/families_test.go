package train

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch/safetensors"
	"github.com/rltrain/rltrain/torch/torchtest"
	"github.com/rltrain/rltrain/torch/transformers"
)

// unlikeLlama are fields of families whose layers are not Llama's.
var unlikeLlama = map[string]map[string]any{
	"experts":      {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
	"convolutions": {"model_type": "lfm2", "layer_types": []string{"conv", "full_attention"}, "block_auto_adjust_ff_dim": false, "block_multiple_of": 8},
	"delta rules": {
		"model_type": "qwen3_5_text", "layer_types": []string{"linear_attention", "full_attention"}, "linear_num_key_heads": 2,
		"linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 6, "head_dim": 16,
	},
	"keys of earlier layers": {
		"model_type": "gemma4_text", "num_hidden_layers": 4, "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 6, "sliding_window": 8,
		"layer_types": []string{"sliding_attention", "full_attention", "sliding_attention", "full_attention"}, "head_dim": 8, "global_head_dim": 12,
	},
	"experts beside MLPs": {
		"model_type": "gemma4_text", "hidden_size_per_layer_input": 0, "sliding_window": 8, "enable_moe_block": true, "num_experts": 4,
		"top_k_experts": 2, "moe_intermediate_size": 16, "layer_types": []string{"sliding_attention", "full_attention"}, "head_dim": 8,
		"global_head_dim": 12,
	},
	"streams": {
		"model_type": "gemma3n_text", "num_hidden_layers": 3, "num_kv_shared_layers": 1, "hidden_size_per_layer_input": 6, "sliding_window": 8,
		"layer_types": []string{"sliding_attention", "full_attention", "full_attention"}, "head_dim": 8, "laurel_rank": 4,
		"altup_num_inputs": 3, "activation_sparsity_pattern": []float64{0.5, 0, 0.3},
	},
}

// tinyFamily is tinyToken with other layers.
func tinyFamily(t testing.TB, fields map[string]any, r int) *policy.CausalLM {
	t.Helper()
	torchtest.NoLeaks(t)
	dir := filepath.Join(t.TempDir(), "tiny")
	must.Do(t, policy.TinyModel(dir, 2, 32, 3))
	path := filepath.Join(dir, "config.json")
	config := map[string]any{}
	must.Do(t, json.Unmarshal(must.Get(os.ReadFile(path))(t), &config))
	for key, value := range fields {
		config[key] = value
	}
	if fields["hidden_size_per_layer_input"] != nil {
		config["vocab_size_per_layer_input"] = config["vocab_size"]
	}
	must.Write(t, path, string(must.Get(json.Marshal(config))(t)))
	random := rand.New(rand.NewPCG(3, 4))
	var tensors []safetensors.Tensor
	for _, spec := range must.Get(transformers.LoadCausalConfig(dir))(t).TensorNames() {
		if spec.Group == "tied" {
			continue
		}
		n := int64(1)
		for _, d := range spec.Shape {
			n *= d
		}
		data := make([]float32, n)
		for i := range data {
			data[i] = float32(0.1 * random.NormFloat64())
		}
		tensors = append(tensors, safetensors.FromFloat32s(spec.Candidates[0], spec.Shape, data))
	}
	must.Do(t, safetensors.Write(filepath.Join(dir, "model.safetensors"), tensors, nil))
	return must.Open(policy.NewCausalLM(policy.Config{Dir: dir, Full: r == 0, R: r, Alpha: 2 * float64(r), Seed: 5}))(t)
}
