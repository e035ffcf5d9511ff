package transformers

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/safetensors"
	"github.com/rltrain/rltrain/torch/torchtest"
)

// zeros makes a tensor of a shape.
func zeros(name string, shape []int64) safetensors.Tensor {
	n := int64(1)
	for _, d := range shape {
		n *= d
	}
	return safetensors.FromFloat32s(name, shape, make([]float32, n))
}

// weights are the encoder's tensors under these names, without pooler and head.
func weights(c *Config, rename func(string) string) []safetensors.Tensor {
	var list []safetensors.Tensor
	for _, spec := range c.TensorNames() {
		if spec.Group == "" {
			list = append(list, zeros(rename(spec.Path), spec.Shape))
		}
	}
	return list
}

func same(name string) string     { return name }
func prefixed(name string) string { return "bert." + name }

func openWeights(t *testing.T, tensors []safetensors.Tensor) *safetensors.Model {
	t.Helper()
	dir := t.TempDir()
	must.Do(t, safetensors.Write(filepath.Join(dir, "model.safetensors"), tensors, nil))
	return must.Open(safetensors.OpenModel(dir))(t)
}

func TestResolve(t *testing.T) {
	c := tiny()
	pooler := []safetensors.Tensor{zeros("bert.pooler.dense.weight", []int64{8, 8}), zeros("bert.pooler.dense.bias", []int64{8})}
	head := []safetensors.Tensor{zeros("classifier.weight", []int64{3, 8}), zeros("classifier.bias", []int64{3})}
	old := func(name string) string {
		return strings.NewReplacer("LayerNorm.weight", "LayerNorm.gamma", "LayerNorm.bias", "LayerNorm.beta").Replace(prefixed(name))
	}
	const query = "encoder.layer.1.attention.self.query.weight"
	for _, tt := range []struct {
		name    string
		tensors []safetensors.Tensor
		size    int
		want    map[string]string // part of the result
	}{
		{
			"AutoModel", append(weights(c, same), safetensors.FromInt64s("embeddings.position_ids", []int64{1, 1}, []int64{0})), 37,
			map[string]string{"layers.1.q.weight": query, "pooler.dense.weight": ""},
		},
		{
			"sequence classifier", slices.Concat(weights(c, prefixed), pooler, head), 41,
			map[string]string{"layers.1.q.weight": "bert." + query, "pooler.dense.bias": "bert.pooler.dense.bias", "classifier.weight": "classifier.weight"},
		},
		{
			"pretraining, old names", append(weights(c, old), zeros("cls.predictions.bias", []int64{32}), zeros("cls.seq_relationship.weight", []int64{2, 8})), 37,
			map[string]string{"layers.0.mlp_norm.bias": "bert.encoder.layer.0.output.LayerNorm.beta", "embed_norm.weight": "bert.embeddings.LayerNorm.gamma"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := must.Get(c.Resolve(openWeights(t, tt.tensors)))(t)
			expect.Same(t, tt.size, len(got), "%d tensors, want %d", len(got), tt.size)
			for canonical, want := range tt.want {
				expect.Same(t, want, got[canonical], "%s", canonical)
			}
		})
	}
}

func TestResolveRefuses(t *testing.T) {
	c := tiny()
	const query = "encoder.layer.1.attention.self.query.weight"
	without := func(name string) []safetensors.Tensor {
		return slices.DeleteFunc(weights(c, same), func(t safetensors.Tensor) bool { return t.Name == name })
	}
	tests := []struct {
		name    string
		tensors []safetensors.Tensor
		want    string
	}{
		{"missing", without(query), "missing tensors: " + query + " [8 8]"},
		{"misshapen", append(without(query), zeros(query, []int64{8, 4})), "tensor " + query + " has shape [8 4], config.json asks for [8 8]"},
		{"other dtype", append(without("embeddings.LayerNorm.bias"), safetensors.FromInt64s("embeddings.LayerNorm.bias", []int64{8}, make([]int64, 8))), "dtype I64"},
		{"extra", append(weights(c, same), zeros("encoder.layer.2.output.dense.bias", []int64{8})), `unknown tensors: "encoder.layer.2.output.dense.bias"`},
		{"misnamed", append(without(query), zeros("encoder.layer.1.attn.q", []int64{8, 8})), "missing tensors: " + query + ` [8 8]; unknown tensors: "encoder.layer.1.attn.q"`},
		{"two spellings", append(weights(c, same), zeros("bert."+query, []int64{8, 8})), "comes twice, as " + query + " and as bert." + query},
		{"half a pooler", append(weights(c, same), zeros("pooler.dense.weight", []int64{8, 8})), "missing tensors: pooler.dense.bias [8]"},
		{"head of other classes", append(weights(c, same), zeros("classifier.weight", []int64{14, 8})), "tensor classifier.weight has shape [14 8], config.json asks for [3 8]"},
		{"empty", nil, "embeddings.word_embeddings.weight [32 8], embeddings.position_embeddings.weight [16 8], embeddings.token_type_embeddings.weight [2 8] and 34 more"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := openWeights(t, tt.tensors)
			_, err := c.Resolve(m)
			expect.True(t, err != nil && strings.Contains(err.Error(), tt.want) && strings.Contains(err.Error(), m.Path()) && !strings.Contains(err.Error(), "\n"),
				"error %v, want %q", err, tt.want)
		})
	}
}

// bert-base with rank 8 on the default targets has 1,327,104 LoRA parameters.
func TestDefaultTargetsOfBertBase(t *testing.T) {
	c := &Config{ModelType: "bert", HiddenSize: 768, IntermediateSize: 3072, NumHiddenLayers: 12, NumAttentionHeads: 12}
	params := 0
	for _, l := range c.Linears() {
		if slices.ContainsFunc(c.DefaultTargets(), func(target string) bool { return strings.HasSuffix(l.Name, "."+target) }) {
			params += 8 * (l.In + l.Out)
		}
	}
	expect.Same(t, 1_327_104, params, "%d parameters", params)
}

func TestPoolingOf(t *testing.T) {
	modules := func(kind string) string {
		return `[{"idx":0,"name":"0","path":"","type":"sentence_transformers.models.Transformer"},{"idx":1,"name":"1","path":"1_Pooling","type":"` + kind + `"}]`
	}
	oldMean := `{"word_embedding_dimension":8,"pooling_mode_cls_token":false,"pooling_mode_mean_tokens":true,"pooling_mode_max_tokens":false}`
	tests := []struct {
		name, modules, pooling, want string
	}{
		{"old", modules("sentence_transformers.models.Pooling"), oldMean, PoolMean},
		{"new", modules("sentence_transformers.sentence_transformer.modules.Pooling"), `{"embedding_dimension":8,"pooling_mode":"mean","include_prompt":true}`, PoolMean},
		{"new, first token", modules("sentence_transformers.base.modules.Pooling"), `{"pooling_mode":"cls"}`, PoolFamily},
		{"mean and max", modules("sentence_transformers.models.Pooling"), `{"pooling_mode_mean_tokens":true,"pooling_mode_max_tokens":true}`, PoolFamily},
		{"first token", modules("sentence_transformers.models.Pooling"), `{"pooling_mode_cls_token":true,"pooling_mode_mean_tokens":false}`, PoolFamily},
		{"another module", modules("sentence_transformers.models.WeightedPooling"), oldMean, PoolFamily},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := PoolingOf(must.Folder(t, map[string]string{"modules.json": tt.modules, "1_Pooling/config.json": tt.pooling}))
			expect.True(t, err == nil && got == tt.want, "%q, %v, want %q", got, err, tt.want)
		})
	}
	expect.Result(PoolingOf(t.TempDir()))(t, PoolFamily, "without modules.json")
}

func TestPoolingOfRefuses(t *testing.T) {
	one := func(path string) string { return `[{"path":"` + path + `","type":"Pooling"}]` }
	tests := []struct {
		name  string
		files map[string]string
		want  string
	}{
		{"not JSON", map[string]string{"modules.json": "["}, "modules.json"},
		{"no config", map[string]string{"modules.json": one("1_Pooling")}, filepath.Join("1_Pooling", "config.json")},
		{"outside", map[string]string{"modules.json": one("../other")}, "leaves the folder"},
		{"kind", map[string]string{"modules.json": one("p"), "p/config.json": `{"pooling_mode":1}`}, "pooling_mode: 1 is not a string"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			expect.Failure(PoolingOf(must.Folder(t, tt.files)))(t, tt.want)
		})
	}
}

func TestRegisterFamily(t *testing.T) {
	RegisterFamily("renamed_llama", "llama", map[string]string{"hidden_size": "width"})
	config := `{"model_type": "llama", "vocab_size": 8, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 16}`
	want := must.Get(parseConfig([]byte(config), decoders))(t)
	got := must.Get(parseConfig([]byte(strings.NewReplacer(`"llama"`, `"renamed_llama"`, "hidden_size", "width").Replace(config)), decoders))(t)
	expect.True(t, got.HiddenSize == want.HiddenSize && reflect.DeepEqual(got.Core(), want.Core()), "got %+v, want %+v", got.Core(), want.Core())
	for _, wrong := range [][2]string{{"llama", "llama"}, {"", "llama"}, {"other", "lama"}} {
		expect.Panic(t, func() { RegisterFamily(wrong[0], wrong[1], nil) })
	}
}

// TestNF4EqualsBitsandbytes: weights stored by bitsandbytes (scripts/fixtures/quantized.py) have its values, also with nested scales.
func TestNF4EqualsBitsandbytes(t *testing.T) {
	torchtest.NoLeaks(t)
	files := must.Open(safetensors.OpenModel(must.Folder(t, map[string]string{"model.safetensors": must.Read(t, filepath.Join("..", "testdata", "quantized.safetensors"))})))(t)
	for _, name := range []string{"f32", "bf16", "double"} {
		want := must.Get(files.Float32s(name + ".dequantized"))(t)
		got := must.Get(nf4Values(files, name+".weight", []int64{6, 192}))(t)
		if name != "f32" { // bitsandbytes returns the type of its input
			v := must.Get(constantAs(got, []int64{6, 192}, torch.BF16))(t)
			got = must.Get(v.Read())(t)
			v.Close()
		}
		for i := range want {
			expect.Require(t, math.Float32bits(got[i]) == math.Float32bits(want[i]), "%s: value %d is %g, want %g", name, i, got[i], want[i])
		}
	}
	for _, shape := range [][]int64{{6, 191}, {192, 6}} {
		expect.Fails(nf4Values(files, "f32.weight", shape))(t, "shape %v is taken for [6 192]", shape)
	}
}

// TestEncodersHoldMatricesInTwoBytes as on a GPU: embeddings and linear layers are rounded to 8 bits, and nothing else.
func TestEncodersHoldMatricesInTwoBytes(t *testing.T) {
	const root = "testdata/encoders"
	for _, entry := range must.Get(os.ReadDir(root))(t) {
		t.Run(entry.Name(), func(t *testing.T) {
			torchtest.NoLeaks(t)
			dir := filepath.Join(root, entry.Name())
			hidden := func(dtype string) (states []float32) {
				m := must.Open(Load(dir, dtype))(t)
				packed := torch.Pack([][]int32{{2, 5, 3, 4}, {6, 2}})
				torchtest.Do(t, torch.NoGrad, func(s *torch.Scope) {
					h, _ := s.Hidden(m.Encoder, packed, torch.Pass{})
					states = s.Read(h)
				})
				return states
			}
			d := torchtest.RelativeError(hidden("bf16"), hidden("fp32"))
			expect.True(t, d != 0 && d <= 0.05, "hidden states differ by %g of their length, want some rounding", d)
		})
	}
}

// TestPublishedModels: configurations of published models, with their fields as they stand on the hub, are read, and have as
// many parameters as their pages say.
func TestPublishedModels(t *testing.T) {
	var models map[string]struct {
		Parameters int64
		Config     json.RawMessage
	}
	must.Do(t, json.Unmarshal(must.Get(os.ReadFile(filepath.Join("testdata", "published.json")))(t), &models))
	expect.True(t, len(models) >= 12, "%d models", len(models))
	for name, m := range models {
		t.Run(name, func(t *testing.T) {
			c := must.Get(parseConfig(m.Config, decoders))(t)
			n := int64(0)
			for _, spec := range c.TensorNames() {
				if spec.Group != "tied" {
					n += spec.elements()
				}
			}
			expect.Same(t, m.Parameters, n, "parameters")
		})
	}
}
