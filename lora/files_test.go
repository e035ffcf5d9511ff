package lora_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/lora"
	"github.com/rltrain/rltrain/torch/safetensors"
)

// adapter is a small two-layer adapter with non-zero B.
func adapter(task string) (lora.Config, []lora.Pair, []safetensors.Tensor) {
	c := lora.Config{R: 2, Alpha: 6, Dropout: 0.1, TargetModules: lora.Modules{Names: []string{"attention.self.query", "intermediate.dense"}}, TaskType: task}
	rng := rand.New(rand.NewPCG(1, 2))
	var pairs []lora.Pair
	for i := range 2 {
		layer := fmt.Sprintf("encoder.layer.%d.", i)
		pairs = append(pairs, lora.Init(layer+"attention.self.query", 4, 4, 2, 3, rng), lora.Init(layer+"intermediate.dense", 4, 6, 2, 3, rng))
	}
	for _, p := range pairs {
		for i := range p.B {
			p.B[i] = rng.Float32()
		}
	}
	if task == lora.FeatureExtraction {
		return c, pairs, nil
	}
	c.Prefix, c.ModulesToSave = "bert.", []string{"classifier", "score"}
	return c, pairs, []safetensors.Tensor{
		safetensors.FromFloat32s("classifier.weight", []int64{3, 4}, make([]float32, 12)),
		safetensors.FromFloat32s("classifier.bias", []int64{3}, []float32{1, 2, 3}),
	}
}

func TestSaveLoad(t *testing.T) {
	for _, task := range []string{lora.FeatureExtraction, lora.SequenceClassification} {
		for _, more := range []bool{false, true} { // with DoRA, and a tensor of a tied weight
			c, pairs, extra := adapter(task)
			c.DoRA, c.WeightTying = more, more
			for i, p := range pairs {
				if more {
					pairs[i].Magnitude = make([]float32, p.Out)
					pairs[i].Magnitude[0] = float32(i + 1)
				}
			}
			if more && len(extra) > 0 {
				extra = append(extra, safetensors.FromFloat32s("tied.weight", []int64{1}, []float32{7}))
			}
			dir := filepath.Join(t.TempDir(), "new", "adapter")
			must.Do(t, lora.Save(dir, c, pairs, extra))
			got := must.Get(lora.Load(dir))(t)
			wantExtra := map[string]safetensors.Tensor{}
			for _, e := range extra {
				wantExtra[e.Name] = e
			}
			expect.Equal(t, lora.Adapter{Config: c, Pairs: pairs, Extra: wantExtra}, got)
			names := tensorNames(t, dir)
			want := "base_model.model." + c.Prefix + "encoder.layer.0.attention.self.query.lora_A.weight"
			expect.True(t, slices.Contains(names, want), "no %s in %v", want, names)
		}
	}
}

func tensorNames(t *testing.T, dir string) []string {
	t.Helper()
	f := must.Open(safetensors.Open(filepath.Join(dir, "adapter_model.safetensors")))(t)
	expect.Same(t, "pt", f.Metadata()["format"], "metadata %v", f.Metadata())
	return slices.Sorted(slices.Values(f.Names()))
}

// Written by PEFT: elements count up in A, down in B, by tens in the head.
func TestLoadPEFT(t *testing.T) {
	tests := []struct {
		dir    string
		want   lora.Config
		scale  float64
		tensor []float32
	}{
		{"testdata/peft_features", lora.Config{R: 2, Alpha: 6, Dropout: 0.1, TaskType: lora.FeatureExtraction}, 3, nil},
		{
			"testdata/peft_classifier",
			lora.Config{R: 2, Alpha: 6, Dropout: 0.1, RSLoRA: true, TaskType: lora.SequenceClassification, ModulesToSave: []string{"classifier", "score"}, Prefix: "bert."},
			4.242640687119285, []float32{0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110},
		},
	}
	for _, tt := range tests {
		t.Run(tt.dir, func(t *testing.T) {
			got := must.Get(lora.Load(tt.dir))(t)
			c, pairs, extra := got.Config, got.Pairs, got.Extra
			slices.Sort(c.TargetModules.Names) // PEFT's order is that of a set
			tt.want.TargetModules.Names = []string{"attention.self.query", "intermediate.dense"}
			expect.Equal(t, tt.want, c)
			expect.Same(t, tt.scale, c.Scale(), "scale")
			want := []lora.Pair{counted(0, "attention.self.query", 4, tt.scale), counted(0, "intermediate.dense", 6, tt.scale), counted(1, "attention.self.query", 4, tt.scale), counted(1, "intermediate.dense", 6, tt.scale)}
			expect.Equal(t, want, pairs)
			if tt.tensor == nil {
				expect.True(t, len(extra) == 0, "extra tensors %v", extra)
				return
			}
			head := must.Get(extra["classifier.weight"].Float32s())(t)
			diff := cmp.Diff(tt.tensor, head)
			expect.True(t, diff == "" && len(extra) == 2, "%v %v", len(extra), diff)
			// Loaded adapters are written under the same names.
			dir := t.TempDir()
			must.Do(t, lora.Save(dir, c, pairs, []safetensors.Tensor{extra["classifier.bias"], extra["classifier.weight"]}))
			expect.Equal(t, tensorNames(t, tt.dir), tensorNames(t, dir))
		})
	}
}

func counted(layer int, module string, out int, scale float64) lora.Pair {
	p := lora.Pair{Module: fmt.Sprintf("encoder.layer.%d.%s", layer, module), R: 2, In: 4, Out: out, Scale: scale}
	for i := range 2 * 4 {
		p.A = append(p.A, float32(i))
	}
	for i := range out * 2 {
		p.B = append(p.B, float32(-i))
	}
	return p
}

func TestLoadRefuses(t *testing.T) {
	const a = "base_model.model.bert.encoder.layer.0.attention.self.query.lora_A.weight"
	const b = "base_model.model.bert.encoder.layer.0.attention.self.query.lora_B.weight"
	drop := func(list []safetensors.Tensor, names ...string) []safetensors.Tensor {
		return slices.DeleteFunc(list, func(t safetensors.Tensor) bool {
			return slices.ContainsFunc(names, func(n string) bool { return strings.Contains(t.Name, n) })
		})
	}
	add := func(list []safetensors.Tensor, name string, shape ...int64) []safetensors.Tensor {
		n := int64(1)
		for _, d := range shape {
			n *= d
		}
		return append(drop(list, name), safetensors.FromFloat32s(name, shape, make([]float32, n)))
	}
	tests := []struct {
		name   string
		change func([]safetensors.Tensor) []safetensors.Tensor
		want   string
	}{
		{"no head", func(l []safetensors.Tensor) []safetensors.Tensor { return drop(l, "classifier") }, "no tensor matches modules_to_save (classifier, score)"},
		{"nothing", func([]safetensors.Tensor) []safetensors.Tensor { return nil }, "no LoRA pair matches target_modules (attention.self.query, intermediate.dense)"},
		{"rank of A", func(l []safetensors.Tensor) []safetensors.Tensor { return add(l, a, 3, 4) }, `tensor "` + a + `" has shape [3 4], want [2 in]`},
		{"rank of B", func(l []safetensors.Tensor) []safetensors.Tensor { return add(l, b, 4, 3) }, `tensor "` + b + `" has shape [4 3], want [out 2]`},
		{"no inputs", func(l []safetensors.Tensor) []safetensors.Tensor { return add(l, a, 2, 0) }, "has shape [2 0]"},
		{"integers", func(l []safetensors.Tensor) []safetensors.Tensor {
			return append(drop(l, a), safetensors.FromInt64s(a, []int64{2, 4}, make([]int64, 8)))
		}, "I64 to float32"},
		{"not meant", func(l []safetensors.Tensor) []safetensors.Tensor {
			return add(add(l, strings.Replace(a, "query", "key", 1), 2, 4), strings.Replace(b, "query", "key", 1), 4, 2)
		}, "module encoder.layer.0.attention.self.key is not selected by target_modules (attention.self.query, intermediate.dense) and the fields that restrict them"},
		{"magnitude", func(l []safetensors.Tensor) []safetensors.Tensor {
			return add(l, "base_model.model.bert.encoder.layer.0.attention.self.query.lora_magnitude_vector", 4)
		}, `lora_magnitude_vector" belongs neither`},
		{"unknown", func(l []safetensors.Tensor) []safetensors.Tensor {
			return add(l, "base_model.model.bert.pooler.dense.weight", 4, 4)
		}, `tensor "bert.pooler.dense.weight" belongs neither to a LoRA pair nor to modules_to_save (classifier, score)`},
		{"full module of a pair", func(l []safetensors.Tensor) []safetensors.Tensor {
			return add(l, strings.TrimSuffix(a, ".lora_A.weight"), 4, 4)
		}, `query" belongs neither to a LoRA pair`},
		{"no prefix", func(l []safetensors.Tensor) []safetensors.Tensor {
			return add(drop(l, "encoder"), "base_model.model.query.lora_A.weight", 2, 4)
		}, `module "query" has no prefix`},
		{"unwrapped", func(l []safetensors.Tensor) []safetensors.Tensor { return add(l, "classifier.weight", 3, 4) }, `"classifier.weight" does not start with base_model.model.`},
		{"other prefix", func(l []safetensors.Tensor) []safetensors.Tensor {
			return add(add(drop(l, a, b), strings.Replace(a, "bert.", "", 1), 2, 4), strings.Replace(b, "bert.", "", 1), 4, 2)
		}, `does not start with "bert." as the others do`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, pairs, extra := adapter(lora.SequenceClassification)
			dir := t.TempDir()
			must.Do(t, lora.Save(dir, c, pairs, extra))
			path := filepath.Join(dir, "adapter_model.safetensors")
			must.Do(t, safetensors.Write(path, tt.change(readAll(t, path)), nil))
			_, err := lora.Load(dir)
			expect.True(t, err != nil && strings.Contains(err.Error(), tt.want) && strings.Contains(err.Error(), path) && !strings.Contains(err.Error(), "\n"),
				"error %v, want %q and the path", err, tt.want)
		})
	}
}

func readAll(t *testing.T, path string) []safetensors.Tensor {
	t.Helper()
	f := must.Open(safetensors.Open(path))(t)
	var list []safetensors.Tensor
	for _, name := range f.Names() {
		e, _ := f.Lookup(name)
		data := must.Get(f.Bytes(name))(t)
		list = append(list, safetensors.Tensor{Name: name, DType: e.DType, Shape: e.Shape, Data: data})
	}
	return list
}

// TestBrokenTensors: an adapter without one of a module's tensors, or with one of another number of dimensions or fewer rows, is
// refused. Fewer rows of what has one for each output are an adapter of a smaller module.
func TestBrokenTensors(t *testing.T) {
	part := regexp.MustCompile(`[^.]*(lora_|vera_|hada_|lokr_|ia3_l|oft_R|_delta).*$`)
	alone, outputs := []string{"ia3_l", "oft_R.weight", "trainable_tokens_delta"}, []string{"lora_B", "lora_B.weight", "lora_B.bias", "ia3_l", "oft_R.weight", "lokr_w1", "lokr_w1_a", "lokr_w2_a", "vera_lambda_b"}
	seen := map[string]bool{} // by what reads them
	mergedOnly := map[string]string{
		"ia3": "an adapter of peft_type IA3", "dora": "magnitudes of DoRA", "head": "full modules (modules_to_save: lm_head, norm)", "tokens": "token embeddings (trainable_token_indices)",
		"lora_bias": "biases of pairs (lora_bias)", "bias_all": "biases of the model (bias: all)", "resized": "full modules", "rslora": "",
	}
	for _, path := range must.Get(filepath.Glob("../rl/policy/testdata/adapters/*/adapter_model.safetensors"))(t) {
		dir := filepath.Dir(path)
		whole := must.Get(lora.Load(dir))(t)
		if want, ok := mergedOnly[filepath.Base(dir)]; ok {
			expect.Same(t, want, whole.MergedOnly(), "what of %s can only be merged", dir)
		}
		list := readAll(t, path)
		for i, x := range list {
			name := part.FindString(x.Name)
			key := fmt.Sprint(whole.Config.Method, whole.Config.DoRA, len(whole.Config.TargetParameters), whole.Config.LoRABias, name)
			if name == "" || seen[key] {
				continue
			}
			seen[key] = true
			broken := func(changed ...safetensors.Tensor) error {
				folder := must.Folder(t, map[string]string{lora.ConfigFile: must.Read(t, filepath.Join(dir, lora.ConfigFile))})
				must.Do(t, safetensors.Write(filepath.Join(folder, lora.WeightsFile), slices.Concat(list[:i], changed, list[i+1:]), nil))
				_, err := lora.Load(folder)
				return err
			}
			if !slices.Contains(alone, name) {
				expect.Error(t, broken(), x.Name)
			}
			deeper, shorter := x, x
			deeper.Shape = append(slices.Clone(x.Shape), 1)
			expect.Error(t, broken(deeper), x.Name+"\" has shape")
			rows := x.Shape[0]
			shorter.Shape, shorter.Data = slices.Concat([]int64{rows - 1}, x.Shape[1:]), x.Data[:int64(len(x.Data))/rows*(rows-1)]
			expect.True(t, broken(shorter) != nil || slices.Contains(outputs, name), "%s: %s with fewer rows is read", dir, x.Name)
		}
	}
}

func TestLoadRefusesFiles(t *testing.T) {
	expect.Failure(lora.Load(t.TempDir()))(t, "adapter_config.json")
	c, pairs, extra := adapter(lora.SequenceClassification)
	dir := t.TempDir()
	must.Do(t, lora.Save(dir, c, pairs, extra))
	must.Do(t, os.Truncate(filepath.Join(dir, lora.WeightsFile), 300))
	expect.Failure(lora.Load(dir))(t, lora.WeightsFile)
	must.Do(t, os.Remove(filepath.Join(dir, lora.WeightsFile)))
	expect.Failure(lora.Load(dir))(t, lora.WeightsFile)
	must.Write(t, filepath.Join(dir, "adapter_model.bin"), "no pickle")
	expect.Failure(lora.Load(dir))(t, "adapter_model.bin")
	must.Write(t, filepath.Join(dir, lora.ConfigFile), `{"peft_type":"LORA","layer_replication":[[0,1]],"task_type":"SEQ_CLS","target_modules":["q"]}`)
	expect.Failure(lora.Load(dir))(t, `adapter_config.json: "layer_replication" is`)
}

func TestSaveRefuses(t *testing.T) {
	type parts struct {
		c     lora.Config
		pairs []lora.Pair
		extra []safetensors.Tensor
	}
	tests := []struct {
		name   string
		change func(*parts)
		want   string
	}{
		{"rank", func(p *parts) { p.c.R = 4 }, "has rank 2, but r and rank_pattern give 4"},
		{"rank by pattern", func(p *parts) { p.c.RankPattern = []lora.Pattern[int]{{Key: "query", Value: 3}} }, "has rank 2, but r and rank_pattern give 3"},
		{"scale", func(p *parts) { p.c.AlphaPattern = []lora.Pattern[float64]{{Key: "dense", Value: 8}} }, "has scale 3, but lora_alpha, alpha_pattern and the rank give 4"},
		{"pattern", func(p *parts) { p.c.ExcludeModules.Pattern = "(" }, "exclude_modules: pattern"},
		{"no prefix", func(p *parts) { p.c.Prefix = "" }, `prefix "" does not fit task_type SEQ_CLS`},
		{"prefix", func(p *parts) { p.c.TaskType = lora.FeatureExtraction }, `prefix "bert." does not`},
		{"task", func(p *parts) { p.c.TaskType = "SEQ_2_SEQ_LM" }, "task_type"},
		{"no pairs", func(p *parts) { p.pairs = nil }, "no LoRA pair"},
		{"pair without target", func(p *parts) { p.c.TargetModules.Names = []string{"query"} }, "is not selected by target_modules (query)"},
		{"extra", func(p *parts) { p.c.ModulesToSave, p.c.WeightTying = nil, true }, "neither to a LoRA pair nor to modules_to_save"},
		{"tokens", func(p *parts) { p.c.Tokens = lora.Tokens{"": {1}} }, "only pairs and full modules can be saved"},
		{"bias of the pair", func(p *parts) { p.c.LoRABias = true }, "only pairs"},
		{"infinite alpha", func(p *parts) { p.c.Alpha = math.Inf(1) }, "lora_alpha is +Inf"},
		{"no extra", func(p *parts) { p.extra = nil }, "no tensor matches modules_to_save"},
		{"A", func(p *parts) { p.pairs[0].A = p.pairs[0].A[1:] }, ": A has 7 elements, [2 4] needs 8"},
		{"B", func(p *parts) { p.pairs[1].B = nil }, ": B has 0 elements, [6 2] needs 12"},
		{"magnitude", func(p *parts) { p.pairs[1].Magnitude = []float32{1} }, "dense: the magnitude vector has 1 elements, want 6"},
		{"magnitude without DoRA", func(p *parts) { p.pairs[1].Magnitude = make([]float32, 6) }, ": use_dora is false, but the module's magnitude vector exists: true"},
		{"DoRA without magnitude", func(p *parts) { p.c.DoRA = true }, ": use_dora is true, but the module's magnitude vector exists: false"},
		{"no inputs", func(p *parts) { p.pairs[0].In, p.pairs[0].A = 0, nil }, "must all be positive"},
		{"no outputs", func(p *parts) { p.pairs[0].Out, p.pairs[0].B = 0, nil }, "must all be positive"},
		{"no rank", func(p *parts) { p.pairs[0] = lora.Pair{Module: p.pairs[0].Module, In: 4, Out: 6} }, "must all be positive"},
		{"twice", func(p *parts) { p.pairs = append(p.pairs, p.pairs[0]) }, "duplicate tensor"},
	}
	c, pairs, extra := adapter(lora.SequenceClassification)
	for place, in := range map[string]func(dir string) string{
		"a file":                       func(dir string) string { return must.File(t, "file", "") },
		"a folder " + lora.WeightsFile: func(dir string) string { must.Do(t, os.Mkdir(filepath.Join(dir, lora.WeightsFile), 0o755)); return dir },
		"a folder " + lora.ConfigFile:  func(dir string) string { must.Do(t, os.Mkdir(filepath.Join(dir, lora.ConfigFile), 0o755)); return dir },
	} {
		expect.Error(t, lora.Save(in(t.TempDir()), c, pairs, extra), "lora: … "+place[strings.LastIndexByte(place, ' ')+1:])
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var p parts
			p.c, p.pairs, p.extra = adapter(lora.SequenceClassification)
			tt.change(&p)
			dir := t.TempDir()
			expect.Error(t, lora.Save(dir, p.c, p.pairs, p.extra), tt.want, dir)
			files, _ := os.ReadDir(dir)
			expect.True(t, len(files) == 0, "files were left: %v", files)
		})
	}
}

func TestFits(t *testing.T) {
	c, pairs, _ := adapter(lora.SequenceClassification)
	shapes := func() map[string]lora.Shape {
		m := map[string]lora.Shape{}
		for i := range 2 {
			m[fmt.Sprintf("encoder.layer.%d.attention.self.query", i)] = lora.Shape{Out: 4, In: 4}
			m[fmt.Sprintf("encoder.layer.%d.attention.self.key", i)] = lora.Shape{Out: 4, In: 4}
			m[fmt.Sprintf("encoder.layer.%d.intermediate.dense", i)] = lora.Shape{Out: 6, In: 4}
		}
		return m
	}
	a := lora.Adapter{Config: c, Pairs: pairs}
	expect.NoError(t, a.Fits(shapes()), "Fits")
	expect.Error(t, lora.Adapter{Config: lora.Config{ExcludeModules: lora.Modules{Pattern: "("}}}.Fits(nil), "exclude_modules: ")
	tests := []struct {
		name   string
		change func(map[string]lora.Shape)
		want   string
	}{
		{"fewer layers", func(m map[string]lora.Shape) { delete(m, "encoder.layer.1.intermediate.dense") }, "has module encoder.layer.1.intermediate.dense, which the model lacks or cannot adapt (it has encoder.layer.*.attention.self.key, encoder.layer.*.attention.self.query, encoder.layer.*.intermediate.dense)"},
		{"more layers", func(m map[string]lora.Shape) {
			m["encoder.layer.10.intermediate.dense"] = lora.Shape{Out: 6, In: 4}
			m["encoder.layer.2.intermediate.dense"] = lora.Shape{Out: 6, In: 4}
		}, "module encoder.layer.2.intermediate.dense, but the adapter has no tensors"},
		{"wider", func(m map[string]lora.Shape) { m["encoder.layer.0.intermediate.dense"] = lora.Shape{Out: 8, In: 4} }, "is for a weight of shape [6 4], the model has [8 4]"},
	}
	for _, tt := range tests {
		m := shapes()
		tt.change(m)
		expect.Error(t, a.Fits(m), tt.want)
	}
}
