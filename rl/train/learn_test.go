package train

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/evaluate"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/safetensors"
	"github.com/rltrain/rltrain/torch/torchtest"
	"github.com/rltrain/rltrain/torch/transformers"
)

// texts are prompts of 3 tokens that determine completions of 2 or 4.
func texts(n int) []policy.Sequence {
	var all []policy.Sequence
	for i := range n {
		ids, length := []int32{20, int32(30 + i%2), int32(40 + i%7)}, 2+2*(i%2)
		for at := range length {
			ids = append(ids, int32(50+10*(i%2)+at))
		}
		labels := make([]bool, len(ids))
		for at := 3; at < len(ids); at++ {
			labels[at] = true
		}
		all = append(all, policy.Sequence{IDs: ids, Labels: labels})
	}
	return all
}

// TestExpectedRewardLearns; ExampleTrain_classifier learns from the rewards of sampled labels.
func TestExpectedRewardLearns(t *testing.T) {
	result := must.Get(newLabelRun("calibration").on(t.Context(), t, tinyLabel(t), (&recorded{}).hooks()))(t)
	before, best := must.Into[evaluate.LabelScores](t, json.Unmarshal, []byte(result.Before)), must.Into[evaluate.LabelScores](t, json.Unmarshal, []byte(result.Best))
	expect.True(t, best.Accuracy >= 0.85 && before.Accuracy <= 0.6, "validation accuracy from %.3f to %.3f, want from chance to at least 0.85", before.Accuracy, best.Accuracy)
}

// TestEachAlgorithmLearns raises the mean reward of a one-turn task from chance to nearly 1.
func TestEachAlgorithmLearns(t *testing.T) {
	for _, test := range []struct {
		name      string
		algorithm func() algo.Algorithm
		change    func(r *tokenRun)
	}{
		{"reinforce greedy", func() algo.Algorithm { return &algo.Reinforce{Baseline: "greedy", Decay: 0.9} }, func(r *tokenRun) { r.greedy = true }},
		{"reinforce async", newReinforce, func(r *tokenRun) { r.Async = true }},
		{"rft", func() algo.Algorithm { return &algo.RFT{MinReward: 1, Keep: "all"} }, func(*tokenRun) {}},
		{"ppo twice", newPPO, func(r *tokenRun) { r.Epochs, r.EntropyCoef = 2, 1e-3 }},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newTokenRun(test.algorithm)
			r.evaluated = 7
			test.change(&r)
			var said recorded
			result := must.Get(r.on(t.Context(), t, tinyToken(t, 0), said.hooks()))(t)
			rewards := said.figure("reward")
			first, last := average(rewards[:3]), average(rewards[len(rewards)-3:])
			expect.True(t, first <= 0.5 && last >= 0.9, "reward went from %.3f to %.3f", first, last)
			before, best := must.Into[rl.AnswerScores](t, json.Unmarshal, []byte(result.Before)), must.Into[rl.AnswerScores](t, json.Unmarshal, []byte(result.Best))
			expect.True(t, before.Accuracy <= 0.5 && best.Accuracy >= 0.9, "evaluation went from %+v to %+v", before, best)
			version := 0.0
			for i, row := range said.steps() {
				if row["updates"] != 0.0 {
					version++
				}
				expect.True(t, row["policy_version"] == version, "step %d ends with version %v, want %v", i+1, row["policy_version"], version) // a step that changes no weight makes no new version
			}
			lines := strings.Join(said.lines, "\n")
			expect.True(t, strings.HasPrefix(lines, "Evaluation: ") && strings.Contains(lines, "[SYNC 25] "), "lines:\n%s", lines)
		})
	}
}

// wrongSign is GRPO with the sign of the loss flipped.
type wrongSign struct{ algo.GRPO }

func (a *wrongSign) Loss(s *torch.Scope, b *algo.Batch) torch.Tensor { return s.Neg(a.GRPO.Loss(s, b)) }

// TestAlarmsOnCollapse trains a good policy with the wrong sign of the loss. An alarm is raised once for as long
// as it lasts.
func TestAlarmsOnCollapse(t *testing.T) {
	p := tinyToken(t, 0)
	r := newTokenRun(newGRPO)
	r.Steps = 12
	must.Get(r.on(t.Context(), t, p, (&recorded{}).hooks()))(t)
	r = newTokenRun(func() algo.Algorithm { return &wrongSign{algo.GRPO{Clip: algo.Clip{Low: 0.2, High: 0.2}}} })
	r.Steps, r.LearningRate, r.Seed = 15, 0.01, 2
	var said recorded
	must.Get(r.on(t.Context(), t, p, said.hooks()))(t)
	collapses := slices.DeleteFunc(slices.Clone(said.lines), func(line string) bool {
		return !strings.HasPrefix(line, "warning: collapse: go back with --resume-from-checkpoint")
	})
	expect.Same(t, 1, len(collapses), "%d alarms in\n%s", len(collapses), strings.Join(said.lines, "\n"))
}

// TestAgentsLearn: the model of an agent, a program that calls it twice an episode, learns what the agent rewards.
func TestAgentsLearn(t *testing.T) {
	r := newTokenRun(newGRPO)
	r.Steps, r.task, r.maxNew, r.PromptsPerStep, r.SamplesPerPrompt, r.LearningRate = 8, agents(t), 1, 2, 8, 0.04
	var said recorded
	must.Get(r.on(t.Context(), t, tinyChat(t, 0), said.hooks()))(t)
	rewards := said.figure("reward")
	first, last := (rewards[0]+rewards[1])/2, (rewards[6]+rewards[7])/2
	expect.True(t, last > first+0.3, "rewards %v", rewards)
}

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
