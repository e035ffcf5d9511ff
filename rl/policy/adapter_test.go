package policy

import (
	"encoding/json"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/lora"
	"github.com/rltrain/rltrain/torch/gguf"
	"github.com/rltrain/rltrain/torch/hub"
	"github.com/rltrain/rltrain/torch/safetensors"
	"github.com/rltrain/rltrain/torch/torchtest"
	"github.com/rltrain/rltrain/torch/transformers"
)

// adapterCases are the adapters in testdata, written by PEFT, and their models. expected.json holds PEFT's
// log-probabilities of the tokens after the first.
var adapterCases = map[string]string{
	"patterns": "llama", "rslora": "llama", "regex": "llama", "all_linear": "llama", "layers": "llama", "conv1d": "gpt2",
	"dora": "llama", "dora_conv1d": "gpt2", "embedding": "llama", "head": "llama", "tied": "llama",
	"lora_embedding": "llama", "lora_head": "llama", "lora_head_only": "llama", "resized": "llama", "pickled": "llama",
	"lora_embedding_dora": "llama", "bias_all": "gpt2", "bias_lora_only": "untied", "lora_bias": "gpt2", "tokens": "llama",
	"tokens_of_both": "untied", "tokens_resized": "untied", "pissa": "llama", "olora": "llama", "eva": "llama", "ia3": "llama",
	"ia3_conv1d": "gpt2", "vera": "llama", "vera_conv1d": "gpt2", "adalora": "llama", "loha": "llama", "lokr": "llama",
	"lokr_both": "llama", "oft": "llama", "oft_exact": "untied", "ln_tuning": "gpt2", "trainable_tokens": "llama",
	"experts": "mixture", "experts_down": "mixture", "experts_woven": "woven",
	"per_expert": "mixture", "per_expert_mixtral": "mixtral", "per_expert_rslora": "mixture", "per_expert_down": "mixtral",
	"per_expert_shared": "qwen2_moe", "per_expert_olmoe": "olmoe",
}

// mergedCases are merged on loading.
var mergedCases = []string{"dora", "dora_conv1d", "embedding", "head", "tied", "lora_embedding", "lora_head", "lora_head_only", "resized",
	"lora_embedding_dora", "bias_all", "bias_lora_only", "lora_bias", "tokens", "tokens_of_both", "tokens_resized", "ia3",
	"ia3_conv1d", "vera", "vera_conv1d", "adalora", "loha", "lokr", "lokr_both", "oft", "oft_exact", "ln_tuning", "trainable_tokens"}

type adapterExpectation struct {
	IDs      []int32              `json:"ids"`
	LogProbs map[string][]float64 `json:"log_probs"`
}

func adapterData(names ...string) string {
	return filepath.Join(append([]string{"testdata", "adapters"}, names...)...)
}

// adapterBase copies a model in testdata, with its tokenizer.
func adapterBase(t *testing.T, model string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), model)
	must.Do(t, transformers.WriteTiny(dir, 1, 32, 1))
	copyFiles(t, adapterData(model), dir)
	return dir
}

func copyFiles(t *testing.T, from, to string) {
	t.Helper()
	for _, f := range must.Get(os.ReadDir(from))(t) {
		must.Do(t, os.WriteFile(filepath.Join(to, f.Name()), must.Get(os.ReadFile(filepath.Join(from, f.Name())))(t), 0o600))
	}
}

// changeAdapter copies an adapter in testdata with changes to its configuration.
func changeAdapter(t *testing.T, name string, members map[string]any) string {
	t.Helper()
	dir := t.TempDir()
	copyFiles(t, adapterData(name), dir)
	path := filepath.Join(dir, lora.ConfigFile)
	config := must.Into[map[string]json.RawMessage](t, files.LoadJSON, path)
	for key, value := range members {
		text := must.Get(json.Marshal(value))(t)
		config[key] = text
	}
	must.Do(t, files.SaveJSON(path, config))
	return dir
}

// scoresOf are the log-probabilities of the tokens after the first.
func scoresOf(t *testing.T, p *CausalLM, ids []int32) []float32 {
	t.Helper()
	return must.Get(p.Score(t.Context(), [][]int32{ids[:1]}, [][]int32{ids[1:]}, 1))(t)[0].LogProbs
}

// checkScores compares the policy's log-probabilities with PEFT's.
func checkScores(t *testing.T, p *CausalLM, ids []int32, want []float64) {
	t.Helper()
	for i, got := range scoresOf(t, p, ids) {
		expect.True(t, math.Abs(float64(got)-want[i]) <= 1e-4, "token %d: log-probability %g, want %g", i+1, got, want[i])
	}
}

// generatesAsItScores compares log-probabilities while generating with those of the finished completion.
func generatesAsItScores(t *testing.T, p *CausalLM, sampler *Sampler, prompt []int32, limit float64) {
	t.Helper()
	must.Do(t, sampler.Generate(t.Context(), [][]int32{prompt}, GenerateOptions{Samples: 1, MaxNew: 8}, func(_ int, c []Completion) error {
		rescored := must.Get(p.Score(t.Context(), [][]int32{prompt}, [][]int32{c[0].IDs}, 1))(t)[0].LogProbs
		torchtest.Near(t, c[0].LogProbs, rescored, limit, "log-probabilities while generating")
		return nil
	}))
}

func TestAdaptersOfPEFT(t *testing.T) {
	want := must.Into[adapterExpectation](t, files.LoadJSON, adapterData("expected.json"))
	for _, name := range slices.Sorted(maps.Keys(adapterCases)) {
		t.Run(name, func(t *testing.T) {
			base := adapterBase(t, adapterCases[name])
			bare := must.Open(LoadCausalLM(t.Context(), &hub.Client{}, base, "", "", false))(t)
			checkScores(t, bare, want.IDs, want.LogProbs[adapterCases[name]])

			// The adapter's folder names its base model.
			p := must.Open(LoadCausalLM(t.Context(), &hub.Client{}, changeAdapter(t, name, map[string]any{"base_model_name_or_path": base}), "", "", false))(t)
			checkScores(t, p, want.IDs, want.LogProbs[name])

			merged := filepath.Join(t.TempDir(), "merged")
			must.Do(t, p.Merge(merged, ""))
			m := must.Open(LoadCausalLM(t.Context(), &hub.Client{}, merged, "", "", false))(t)
			checkScores(t, m, want.IDs, want.LogProbs[name])
			if name == "embedding" || name == "head" || strings.HasPrefix(name, "dora") {
				checkTrainedInFull(t, base, name, want)
				return
			}
			if slices.Contains(mergedCases, name) {
				expect.Failure(LoadCausalLM(t.Context(), &hub.Client{}, base, adapterData(name), "", true))(t, "cannot be trained further; write a full model with rltrain merge")
				return
			}

			// A saved adapter gives the same scores, and saving it again gives the same files.
			saved, again := t.TempDir(), t.TempDir()
			must.Do(t, p.Save(saved))
			q := must.Open(LoadCausalLM(t.Context(), &hub.Client{}, saved, "", "", false))(t)
			checkScores(t, q, want.IDs, want.LogProbs[name])
			diff := cmp.Diff(p.adapter.config, q.adapter.config, cmpopts.IgnoreFields(lora.Config{}, "BaseHash"))
			expect.True(t, diff == "" && q.adapter.config.BaseHash != "", "base weights of hash %q: %s", q.adapter.config.BaseHash, diff)
			must.Do(t, q.Save(again))
			for _, file := range []string{lora.ConfigFile, "adapter_model.safetensors"} {
				one, errOne := os.ReadFile(filepath.Join(saved, file))
				two, errTwo := os.ReadFile(filepath.Join(again, file))
				expect.True(t, errOne == nil && errTwo == nil && slices.Equal(one, two), "%s changes when saved again", file)
			}
			total, trainable := p.Parameters()
			expect.True(t, trainable == weightsOf(t, saved) && total == p.parameters+trainable-p.adapter.fullSize(), "%d of %d parameters are trainable, the file has %d", trainable, total, weightsOf(t, saved))
		})
	}
}

// checkTrainedInFull: an adapter with full modules can be trained further; what it saves, exports and merges has their new values,
// in names and shapes that PEFT reads, and its reference is not the base model.
func checkTrainedInFull(t *testing.T, base, name string, want adapterExpectation) {
	t.Helper()
	p := must.Open(LoadCausalLM(t.Context(), &hub.Client{}, changeAdapter(t, name, map[string]any{"base_model_name_or_path": base}), "", "", true))(t)
	checkScores(t, p, want.IDs, want.LogProbs[name])
	expect.Same(t, false, must.Get(p.Fresh())(t), "the base model is the reference")
	_, trainable := p.Parameters()
	saved, merged := t.TempDir(), filepath.Join(t.TempDir(), "merged")
	must.Do(t, p.Save(saved))
	expect.Same(t, weightsOf(t, adapterData(name)), weightsOf(t, saved), "weights saved")
	expect.Same(t, weightsOf(t, saved), trainable, "trainable weights")
	sampler := must.Open(p.NewSampler(1))(t)
	changed := scoresOf(t, perturbed(t, p), want.IDs)
	generatesAsItScores(t, p, sampler, want.IDs[:3], 1e-4)
	must.Do(t, p.Save(saved))
	must.Do(t, p.SaveFull(merged, ""))
	for _, dir := range []string{saved, merged} {
		q := must.Open(LoadCausalLM(t.Context(), &hub.Client{}, dir, "", "", false))(t)
		expect.Equal(t, changed, scoresOf(t, q, want.IDs), cmpopts.EquateApprox(0, 1e-5), "log-probabilities of what was saved")
	}
}

// TestNewModulesToSave: without its adapter, a policy that trains modules in full is not what it was.
func TestNewModulesToSave(t *testing.T) {
	for _, modules := range [][]string{nil, {"lm_head"}} {
		expect.Same(t, modules == nil, must.Get(tinyPolicy(t, Config{R: 2, Alpha: 4, ModulesToSave: modules}).Fresh())(t), "the base model is the reference")
	}
	expect.Failure(NewCausalLM(Config{Dir: adapterBase(t, "gpt2"), R: 2, Alpha: 4, ModulesToSave: []string{"c_fc"}}))(t, "module transformer.h.0.mlp.c_fc cannot be trained in full")
	expect.Failure(NewCausalLM(Config{Dir: adapterBase(t, "llama"), R: 2, Alpha: 4, ModulesToSave: []string{"x"}}))(t, `target "x" matches no module; choose from model.embed_tokens`)
}

// weightsOf counts the values in an adapter's tensors.
func weightsOf(t *testing.T, dir string) int64 {
	t.Helper()
	f := must.Open(safetensors.Open(filepath.Join(dir, "adapter_model.safetensors")))(t)
	var n int64
	for _, name := range f.Names() {
		e, _ := f.Lookup(name)
		size := int64(1)
		for _, d := range e.Shape {
			size *= d
		}
		n += size
	}
	return n
}

func TestAdaptersThatDoNotFit(t *testing.T) {
	llama, gpt2 := adapterBase(t, "llama"), adapterBase(t, "gpt2")
	other := filepath.Join(t.TempDir(), "other") // one layer of another width
	must.Do(t, TinyModel(other, 1, 64, 1))
	for _, c := range []struct {
		name, base, adapter string
		change              map[string]any
		want                string
	}{
		{"another family", gpt2, "rslora", nil, "the adapter has module model.layers.0.self_attn.k_proj, which the model lacks or cannot adapt (it has transformer.h.*.attn.c_attn,"},
		{"another width", other, "patterns", nil, "module model.layers.0.mlp.down_proj: the adapter is for a weight of shape [32 48], the model has [64 256]"},
		{"a pair that is not meant", llama, "layers", map[string]any{"target_modules": []string{"q_proj", "o_proj"}}, "module model.layers.0.mlp.up_proj is not selected by target_modules (q_proj, o_proj)"},
		{"too few pairs", llama, "layers", map[string]any{"layers_to_transform": nil, "layers_pattern": nil}, "target_modules select module model.layers.0.self_attn.o_proj, but the adapter has no tensors for it"},
		{"other ranks", llama, "patterns", map[string]any{"rank_pattern": nil}, "self_attn.q_proj.lora_A.weight\" has shape [3 32], want [4 in]"},
		{"DoRA without magnitudes", llama, "rslora", map[string]any{"use_dora": true}, "self_attn.k_proj.lora_magnitude_vector\" is missing"},
		{"magnitudes without DoRA", llama, "dora", map[string]any{"use_dora": false}, "down_proj.lora_magnitude_vector\" belongs neither to a LoRA pair nor to modules_to_save"},
		{"whole modules of another width", other, "head", map[string]any{"target_modules": []string{"v_proj"}}, "the adapter is for a weight of shape [16 32], the model has [64 64]"},
		{"an output layer of another family", gpt2, "head", nil, "the adapter has module model.layers.0.self_attn.v_proj"},
		{"biases of pairs", llama, "rslora", map[string]any{"lora_bias": true}, "k_proj.lora_B.bias\" is missing"},
		{"biases of pairs without a bias", gpt2, "lora_bias", map[string]any{"lora_bias": false}, "mlp.c_proj.lora_B.bias\" belongs neither"},
		{"biases that are not meant", gpt2, "bias_all", map[string]any{"bias": "lora_only"}, "attn.c_proj.bias\" belongs neither"},
		{"tokens that are not named", llama, "tokens", map[string]any{"trainable_token_indices": nil}, "trainable_tokens_delta\" belongs neither"},
		{"fewer tokens", llama, "tokens", map[string]any{"trainable_token_indices": []int{1}}, "has shape [3 32], but trainable_token_indices gives it 1 tokens"},
		{"tokens beyond the vocabulary", llama, "tokens", map[string]any{"trainable_token_indices": []int{1, 2, 99}}, "tensor model.embed_tokens.weight: the adapter is for the shape [100 or more, 32], the model has [99 32]"},
		{"scales of another family", gpt2, "ia3", nil, "the adapter changes tensor \"model.layers.0.mlp.down_proj.weight\", which the model lacks"},
		{"scales of another width", other, "ia3", map[string]any{"target_modules": []string{"k_proj", "v_proj", "down_proj"}}, "tensor model.layers.0.mlp.down_proj.weight: the adapter is for the shape [1 or more, 48], the model has [64 256]"},
		{"too few scales", llama, "ia3", map[string]any{"target_modules": []string{"k_proj", "v_proj", "down_proj", "up_proj"}}, "target_modules select module model.layers.0.mlp.up_proj, but"},
		{"scales that are not meant", llama, "ia3", map[string]any{"target_modules": []string{"k_proj", "v_proj"}}, "module model.layers.0.mlp.down_proj is not selected by target_modules"},
		{"projections for less inputs", other, "vera", nil, "the adapter is for the shape [32, 1 to 48], the model has [64 256]"},
		{"fewer experts", adapterBase(t, "mixture"), "per_expert_mixtral", nil, "module model.layers.0.mlp.experts.down_proj: the adapter is for a weight of shape [3 16 12], the model has [5 16 12]"},
		{"experts of other layers", adapterBase(t, "mixture"), "per_expert_rslora", map[string]any{"layers_to_transform": []int{0}}, "experts.0.down_proj.lora_A.weight\" belongs to no module of target_modules"},
		{"a classifier's", llama, "rslora", map[string]any{"task_type": lora.FeatureExtraction}, "task_type is FEATURE_EXTRACTION"},
		{"no expression", llama, "regex", map[string]any{"target_modules": "(?!model).*"}, "target_modules: pattern \"(?!model).*\" is not supported"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := LoadCausalLM(t.Context(), &hub.Client{}, c.base, changeAdapter(t, c.adapter, c.change), "", false)
			if err == nil {
				p.Close()
			}
			expect.True(t, err != nil && strings.Contains(err.Error(), c.want) && !strings.Contains(err.Error(), "\n"), "error %v, want %q on one line", err, c.want)
		})
	}
}

// TestAdapterNamesItsRevision: the base model is fetched at the named revision, which saving keeps.
func TestAdapterNamesItsRevision(t *testing.T) {
	t.Setenv("RLTRAIN_CACHE", t.TempDir())
	t.Setenv("HF_HOME", t.TempDir())
	t.Setenv("HF_HUB_OFFLINE", "1")
	dir := changeAdapter(t, "rslora", map[string]any{"base_model_name_or_path": "org/name", "revision": "v1.5"})
	expect.Failure(LoadCausalLM(t.Context(), &hub.Client{}, dir, "", "", false))(t, "org/name@v1.5")
	plain := changeAdapter(t, "rslora", map[string]any{"base_model_name_or_path": "org/name"})
	_, err := LoadCausalLM(t.Context(), &hub.Client{}, plain, "", "", false)
	expect.True(t, err != nil && !strings.Contains(err.Error(), "@"), "error %v, want one of org/name", err)
	// A folder has no revisions.
	folder := changeAdapter(t, "rslora", map[string]any{"base_model_name_or_path": adapterBase(t, "llama"), "revision": "v1.5"})
	local := must.Get(LoadCausalLM(t.Context(), &hub.Client{}, folder, "", "", false))(t)
	local.Close()
	p := must.Open(LoadCausalLM(t.Context(), &hub.Client{}, adapterBase(t, "llama"), dir, "", false))(t)
	saved := t.TempDir()
	must.Do(t, p.Save(saved))
	a, err := lora.Load(saved)
	config := a.Config
	expect.True(t, err == nil && config.BaseModel == "org/name" && config.Revision == "v1.5", "%s at %q, error %v; want org/name at v1.5", config.BaseModel, config.Revision, err)
	must.Do(t, tinyPolicy(t, Config{R: 2, Alpha: 4, BaseModel: "org/name", Revision: "0123"}).Save(saved))
	a, err = lora.Load(saved)
	config = a.Config
	expect.True(t, err == nil && config.Revision == "0123", "revision %q, error %v; want 0123", config.Revision, err)
}

// TestAdapterAsGGUF: layers with ranks and alphas of their own keep the size of their changes under the file's one alpha.
func TestAdapterAsGGUF(t *testing.T) {
	dir := adapterData("rslora")
	pairs := must.Get(lora.Load(dir))(t).Pairs
	p := must.Open(LoadCausalLM(t.Context(), &hub.Client{}, adapterBase(t, "llama"), dir, "", false))(t)
	path := filepath.Join(t.TempDir(), "adapter.gguf")
	must.Do(t, p.SaveAdapterGGUF(path, "x"))
	file := must.Open(gguf.Open(path))(t)
	alpha, _, err := file.Float("adapter.lora.alpha")
	must.Do(t, err)
	size := func(values []float32, scale float64) (sum float64) {
		for _, v := range values {
			sum += math.Abs(float64(v)) * scale
		}
		return sum
	}
	var want, got []float64 // of every A and B, in any order
	for _, pair := range pairs {
		want = append(want, size(pair.A, 1), size(pair.B, pair.Scale))
	}
	for _, tensor := range file.Tensors() {
		scale := 1.0
		if strings.HasSuffix(tensor.Name, ".lora_b") {
			scale = alpha / float64(tensor.Shape[1])
		}
		got = append(got, size(file.Float32s(tensor), scale))
	}
	slices.Sort(want)
	slices.Sort(got)
	diff := cmp.Diff(want, got, cmpopts.EquateApprox(1e-5, 0))
	expect.True(t, diff == "" && slices.Min(want) != 0, "sizes (-adapter +file):\n%s", diff)
}

// TestAdaptersOfClassifiers: what a classifier would leave out is refused.
func TestAdaptersOfClassifiers(t *testing.T) {
	head := map[string]safetensors.Tensor{"score.weight": safetensors.FromFloat32s("score.weight", []int64{2, 2}, make([]float32, 4))}
	whole := lora.Adapter{Config: lora.Config{ModulesToSave: []string{"score"}}, Extra: head}
	expect.NoError(t, savedAdapter{whole, "x"}.besideHead(false), "a head")
	expect.Error(t, savedAdapter{whole, "x"}.besideHead(true), "x has full modules (modules_to_save: score)")
	for want, config := range map[string]lora.Config{
		"magnitudes of DoRA": {DoRA: true}, "peft_type IA3": {Method: "IA3"}, "token embeddings": {Tokens: lora.Tokens{"": {1}}}, "biases of pairs": {LoRABias: true},
	} {
		expect.Error(t, savedAdapter{lora.Adapter{Config: config, Extra: head}, "x"}.besideHead(false), want)
	}
	p := &Classifier{head: classHead{parts: []headPart{{name: "score.weight", dims: []int64{2, 2}}}}}
	_, err := p.head.from(head)
	expect.NoError(t, err, "a head")
	head["bert.pooler.dense.bias"] = safetensors.FromFloat32s("bert.pooler.dense.bias", []int64{2}, make([]float32, 2))
	expect.Failure(p.head.from(head))(t, `tensor "bert.pooler.dense.bias" is not of the classification head`)
}
