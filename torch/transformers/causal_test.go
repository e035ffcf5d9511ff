package transformers_test

import (
	"bytes"
	"encoding/json"
	"fmt"
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
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/safetensors"
	"github.com/rltrain/rltrain/torch/torchtest"
	"github.com/rltrain/rltrain/torch/transformers"
)

// folder copies a fixture's model into a new folder; change changes its tensors.
func folder(t *testing.T, name string, change func(map[string]safetensors.Tensor)) string {
	t.Helper()
	from, dir := filepath.Join("testdata", "causal", name), t.TempDir()
	must.Write(t, filepath.Join(dir, "config.json"), must.Read(t, filepath.Join(from, "config.json")))
	tensors := tensorsOf(t, from)
	change(tensors)
	must.Do(t, safetensors.Write(filepath.Join(dir, "model.safetensors"), slices.Collect(maps.Values(tensors)), nil))
	return dir
}

func tensorsOf(t *testing.T, dir string) map[string]safetensors.Tensor {
	t.Helper()
	files := must.Open(safetensors.OpenModel(dir))(t)
	tensors := map[string]safetensors.Tensor{}
	for _, name := range files.Names() {
		_, e, _ := files.Entry(name)
		data := must.Get(files.Bytes(name))(t)
		tensors[name] = safetensors.Tensor{Name: name, DType: e.DType, Shape: e.Shape, Data: data}
	}
	return tensors
}

func TestLoadCausalRefuses(t *testing.T) {
	zeros := func(name string, shape ...int64) safetensors.Tensor {
		n := int64(1)
		for _, d := range shape {
			n *= d
		}
		return safetensors.FromFloat32s(name, shape, make([]float32, n))
	}
	for _, tt := range []struct {
		name, model string
		change      func(map[string]safetensors.Tensor)
		want        string
	}{
		{"no output layer", "llama_yarn", func(m map[string]safetensors.Tensor) { delete(m, "lm_head.weight") }, "missing tensors: lm_head.weight [61 24]"},
		{"output layer of its own", "llama", func(m map[string]safetensors.Tensor) { m["h"] = zeros("lm_head.weight", 61, 24) }, "tensor lm_head.weight differs from model.embed_tokens.weight, but tie_word_embeddings"},
		{"not transposed", "gpt2", func(m map[string]safetensors.Tensor) {
			m["h.0.attn.c_attn.weight"] = zeros("h.0.attn.c_attn.weight", 72, 24)
		}, "tensor h.0.attn.c_attn.weight has shape [72 24], config.json asks for [24 72]"},
		{"experts of another number", "granitemoe", func(m map[string]safetensors.Tensor) {
			m["model.layers.1.block_sparse_moe.output_linear.weight"] = zeros("model.layers.1.block_sparse_moe.output_linear.weight", 4, 18, 20)
		}, "tensor model.layers.1.block_sparse_moe.output_linear.weight has shape [4 18 20], config.json asks for"},
		{"a missing expert", "mixtral", func(m map[string]safetensors.Tensor) {
			delete(m, "model.layers.1.block_sparse_moe.experts.4.w2.weight")
		}, "missing tensors: model.layers.1.block_sparse_moe.experts.4.w2.weight [18 20]"},
		{"a classifier", "qwen3", func(m map[string]safetensors.Tensor) {
			delete(m, "lm_head.weight")
			m["s"] = zeros("score.weight", 1, 24)
		}, `missing tensors: lm_head.weight [61 24]; unknown tensors: "score.weight"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			torchtest.NoLeaks(t)
			dir := folder(t, tt.model, tt.change)
			_, err := transformers.LoadCausal(dir, transformers.CausalOptions{})
			expect.True(t, err != nil && strings.Contains(err.Error(), tt.want) && strings.Contains(err.Error(), dir) && !strings.Contains(err.Error(), "\n"),
				"error %v, want %q", err, tt.want)
		})
	}
}

func TestLoadCausalOptionsRefused(t *testing.T) {
	for want, o := range map[string]transformers.CausalOptions{
		`dtype "int7", want fp32, bf16, fp16, nf4 or int8`: {DType: "int7"},
		"all weights are trained in float32":               {DType: "bf16", Trainable: true},
	} {
		expect.Failure(transformers.LoadCausal(filepath.Join("testdata", "causal", "llama"), o))(t, want)
	}
}

// TestTiedOutputLayerMayBeThere: some folders store the tied output layer too.
func TestTiedOutputLayerMayBeThere(t *testing.T) {
	torchtest.NoLeaks(t)
	dir := folder(t, "llama", func(m map[string]safetensors.Tensor) {
		head := m["model.embed_tokens.weight"]
		head.Name = "lm_head.weight"
		m["h"] = head
	})
	model := must.Open(transformers.LoadCausal(dir, transformers.CausalOptions{}))(t)
	expect.Same(t, model.Weights["embed.weight"], model.Head, "the output layer is not the embedding")
	saved := t.TempDir()
	must.Do(t, model.Save(saved, transformers.SaveOptions{}))
	_, ok := tensorsOf(t, saved)["lm_head.weight"]
	expect.True(t, !ok, "the output layer was saved in addition to the embedding")
}

// TestLoadCausalSpellings: names without the prefix of the model's class, and weights in several files.
func TestLoadCausalSpellings(t *testing.T) {
	c := openCausal(t, "llama", transformers.CausalOptions{})
	want := tensorsOf(t, filepath.Join("testdata", "causal", "llama"))
	dir := folder(t, "llama", func(m map[string]safetensors.Tensor) { clear(m) })
	must.Do(t, os.Remove(filepath.Join(dir, "model.safetensors")))
	index := map[string]string{}
	shards := map[string][]safetensors.Tensor{}
	for i, name := range slices.Sorted(maps.Keys(want)) {
		tensor := want[name]
		tensor.Name = strings.TrimPrefix(name, "model.")
		shard := []string{"a.safetensors", "b.safetensors"}[i%2]
		index[tensor.Name] = shard
		shards[shard] = append(shards[shard], tensor)
	}
	for shard, tensors := range shards {
		must.Do(t, safetensors.Write(filepath.Join(dir, shard), tensors, nil))
	}
	must.Write(t, filepath.Join(dir, "model.safetensors.index.json"), string(must.Get(json.Marshal(map[string]any{"weight_map": index}))(t)))
	c.Causal = must.Open(transformers.LoadCausal(dir, transformers.CausalOptions{}))(t)
	torchtest.Near(t, c.read(t, c.sequences, false), c.want(t, "logits"), tolerance, "logits")
}

func TestTrainableWeights(t *testing.T) {
	for _, name := range []string{"llama_linear", "gpt2", "granitemoe", "qwen2_moe_mixed", "gpt_oss", "lfm2_biased", "qwen3_5_text", "gemma4_text_same", "gemma4_text_mixed", "gemma3n_text"} {
		t.Run(name, func(t *testing.T) {
			c := openCausal(t, name, transformers.CausalOptions{Trainable: true})
			torchtest.Near(t, c.read(t, c.sequences, false), c.want(t, "logits"), tolerance, "logits")
			// The weights are copies: writing to one does not change the file.
			must.Do(t, c.Weights["norm.weight"].Write(make([]float32, c.Config.HiddenSize)))
			dir := t.TempDir()
			must.Do(t, c.Save(dir, transformers.SaveOptions{}))
			saved := tensorsOf(t, dir)
			for key, tensor := range tensorsOf(t, c.Dir) {
				got := saved[key]
				values := must.Get(tensor.Float32s())(t)
				if strings.HasSuffix(key, "norm.weight") && !strings.Contains(key, "layer") || strings.HasSuffix(key, "ln_f.weight") {
					values = make([]float32, len(values))
				}
				read := must.Get(got.Float32s())(t)
				d := torchtest.MaxDiff(read, values)
				expect.True(t, d == 0 && len(read) == len(values), "%s was saved with a difference of %g", key, d)
				expect.True(t, got.DType == safetensors.F32 || strings.HasSuffix(key, ".attn.bias"), "%s was saved as %s", key, got.DType)
			}
			text, err := os.ReadFile(filepath.Join(dir, "config.json"))
			expect.True(t, err == nil && !strings.Contains(string(text), "bfloat16"), "config.json: %v\n%s", err, text)
		})
	}
}

// TestSaveMerged: a merged model computes the same as the adapted one.
func TestSaveMerged(t *testing.T) {
	for _, name := range []string{"llama", "gpt2", "gpt_neox", "phi3_window", "gemma3", "mistral3_small", "granitemoehybrid", "glm4", "cohere2", "granitemoe", "qwen2_moe_mixed", "gpt_oss_mxfp4", "lfm2", "qwen3_5", "qwen3_5_moe", "lfm2_moe", "gemma4_text", "gemma4", "gemma4_mixed", "gemma3n_text", "gemma3n_text_full", "gemma3n"} {
		t.Run(name, func(t *testing.T) {
			c := openCausal(t, name, transformers.CausalOptions{DType: "fp32"})
			c.adaptThese(t, c.Config.Linears())
			want := c.read(t, c.sequences, true)
			merge := map[string]func([]float32){}
			for _, l := range c.Config.Linears() {
				a, b := c.want(t, l.Name+".lora_A.weight"), c.want(t, l.Name+".lora_B.weight")
				merge[l.Name+".weight"] = func(w []float32) {
					for o := range l.Out {
						for i := range l.In {
							w[o*l.In+i] += 1.5 * (b[2*o]*a[i] + b[2*o+1]*a[l.In+i])
						}
					}
				}
			}
			dir := t.TempDir()
			must.Do(t, c.Save(dir, transformers.SaveOptions{Change: merge, DType: "fp32"}))
			merged := must.Open(transformers.LoadCausal(dir, transformers.CausalOptions{}))(t)
			torchtest.Near(t, causalCase{Causal: merged}.read(t, c.sequences, false), want, logitsLimit(name), "logits")
		})
	}
}

// TestSaveUnchanged: only merged weights differ, and the other files are copied.
func TestSaveUnchanged(t *testing.T) {
	dir := folder(t, "llama_linear", func(map[string]safetensors.Tensor) {})
	files := map[string]string{
		"tokenizer.json": "{ \"odd\":1}", "chat_template.jinja": "{{ x }}\r\n", "generation_config.json": "{\"eos_token_id\": [3, 4]}",
		"additional_chat_templates/tool_use.jinja": "tools", "pytorch_model.bin": "no",
	}
	for name, text := range files {
		must.Write(t, filepath.Join(dir, name), text)
	}
	model := must.Open(transformers.LoadCausal(dir, transformers.CausalOptions{DType: "fp32"}))(t)
	expect.Equal(t, []int32{2, 3, 4}, model.EOS())
	saved := t.TempDir()
	const module = "model.layers.1.mlp.down_proj"
	double := func(w []float32) {
		for i := range w {
			w[i] *= 2
		}
	}
	must.Do(t, model.Save(saved, transformers.SaveOptions{Change: map[string]func([]float32){module + ".weight": double}}))
	delete(files, "pytorch_model.bin")
	_, err := os.Stat(filepath.Join(saved, "pytorch_model.bin"))
	expect.True(t, err != nil, "pytorch_model.bin was copied")
	files["config.json"] = ""
	for name := range files {
		got, err := os.ReadFile(filepath.Join(saved, name))
		want, wantErr := os.ReadFile(filepath.Join(dir, name))
		expect.True(t, err == nil && wantErr == nil && bytes.Equal(got, want), "%s: %q, %v, want %q, %v", name, got, err, want, wantErr)
	}
	got := tensorsOf(t, saved)
	for name, tensor := range tensorsOf(t, dir) {
		if name == module+".weight" {
			values := must.Get(tensor.Float32s())(t)
			double(values)
			tensor = safetensors.FromFloat32sAs(tensor.DType, name, tensor.Shape, values)
		}
		expect.Equal(t, tensor, got[name], name)
	}
	expect.Error(t, model.Save(t.TempDir(), transformers.SaveOptions{Change: map[string]func([]float32){"model.layers.2.mlp.down_proj.weight": double}}), "1 of 1 tensors to change are not the model")
}

// TestWeightsAreOfTheDTypeAskedFor: matrices are rounded, norms are not.
func TestWeightsAreOfTheDTypeAskedFor(t *testing.T) {
	stored := tensorsOf(t, filepath.Join("testdata", "causal", "llama"))
	for option, dtype := range map[string]safetensors.DType{"": safetensors.F32, "bf16": safetensors.BF16, "fp16": safetensors.F16} {
		c := openCausal(t, "llama", transformers.CausalOptions{DType: option})
		for layer, name := range map[string]string{
			"embed": "model.embed_tokens", "layers.1.down": "model.layers.1.mlp.down_proj", "norm": "model.norm",
		} {
			as := dtype
			if layer == "norm" {
				as = safetensors.F32
			}
			exact := must.Get(stored[name+".weight"].Float32s())(t)
			want := must.Get(safetensors.FromFloat32sAs(as, "x", stored[name+".weight"].Shape, exact).Float32s())(t)
			expect.Equal(t, want, must.Get(c.Weights[layer+".weight"].Read())(t), fmt.Sprintf("dtype %q: %s", option, layer))
		}
	}
}

func TestGenerationConfig(t *testing.T) {
	config := must.Get(transformers.LoadCausalConfig(filepath.Join("testdata", "causal", "llama")))(t)
	for _, tt := range []struct {
		text, refused string
		want          transformers.GenerationConfig
	}{
		{text: `{}`, want: transformers.GenerationConfig{BOS: -1, Pad: -1, Temperature: 1, TopP: 1, RepetitionPenalty: 1}},
		{text: `{"eos_token_id":[5,6],"pad_token_id":3,"do_sample":true,"temperature":0.6,"top_k":20,"top_p":0.9,"min_p":0.1,"repetition_penalty":1.1,"max_length":9}`, want: transformers.GenerationConfig{
			EOS: []int32{5, 6}, BOS: -1, Pad: 3, DoSample: true, Temperature: 0.6, TopK: 20, TopP: 0.9, MinP: 0.1, RepetitionPenalty: 1.1,
		}},
		{text: `{"eos_token_id":[61,5]}`, want: transformers.GenerationConfig{EOS: []int32{5}, BOS: -1, Pad: -1, Temperature: 1, TopP: 1, RepetitionPenalty: 1}},
		{text: `{"temperature":-1}`, refused: "temperature -1 is below 0"},
		{text: `{"top_p":0}`, refused: "top_p 0 is not above 0"},
		{text: `{"top_k":-1}`, refused: "top_k -1 is below 0"},
		{text: `{"min_p":2}`, refused: "min_p 2 is not between"},
		{text: `{"repetition_penalty":0}`, refused: "repetition_penalty 0 is not above 0"},
		{text: `[]`, refused: "not a JSON object"},
	} {
		dir := t.TempDir()
		must.Write(t, filepath.Join(dir, "generation_config.json"), tt.text)
		got, err := transformers.LoadGenerationConfig(dir, config)
		if tt.refused != "" {
			expect.Error(t, err, tt.refused, "generation_config.json")
			continue
		}
		diff := cmp.Diff(tt.want, got)
		expect.True(t, err == nil && diff == "", "%s: %v %s", tt.text, err, diff)
	}
	if got, err := transformers.LoadGenerationConfig(t.TempDir(), config); err != nil || got.Temperature != 1 {
		t.Errorf("without the file: %+v, %v", got, err)
	}
}

// TestGradientsWithoutTokens: experts that no token of a step meets have gradients of 0, as other tools' have, which keep all experts in
// one tensor; and a token whose row of the embedding is 0 has finite ones.
func TestGradientsWithoutTokens(t *testing.T) {
	for _, name := range causalCases(t) {
		c := openCausal(t, name, transformers.CausalOptions{Trainable: true})
		token := c.sequences[0][:1]
		embed := must.Get(c.Weights["embed.weight"].Read())(t)
		width := c.Config.HiddenSize
		clear(embed[int(token[0])*width : (int(token[0])+1)*width])
		must.Do(t, c.Weights["embed.weight"].Write(embed))
		torchtest.Do(t, torch.Train, func(s *torch.Scope) {
			hidden, _ := s.Hidden(c.Model, torch.Pack([][]int32{token}), torch.Pass{})
			s.Backward(s.Sum(s.Mul(hidden, hidden)))
			unmet := 0
			for key, v := range c.Weights {
				grad, ok := s.Grad(v)
				if !ok {
					expect.True(t, !strings.Contains(key, ".experts."), "%s: %s has no gradient", name, key)
					continue
				}
				sum := s.Item(s.Sum(s.Mul(grad, grad)))
				expect.True(t, !math.IsNaN(sum), "%s: the gradient of %s is NaN", name, key)
				if strings.Contains(key, ".experts.") && sum == 0 {
					unmet++
				}
			}
			d := c.Config.Core()
			expect.True(t, unmet > 0 || d.ExpertsPerToken == d.Experts, "%s: one token met all experts", name)
		})
	}
}
